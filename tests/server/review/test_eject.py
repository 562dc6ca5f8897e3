import errno
import statistics
from pathlib import Path

import numpy as np
import pytest
from tests.server.recorded_runs import LIARS, PROBLEM, distance, record

from secureafl import Machine, Reason, Vector
from secureafl.errors import SettingsError, StoreError
from secureafl.server import FederationSettings
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.eject import _median, eject
from secureafl.server.review.opened import RecordedRun

NAMES = [f"client-{k}" for k in LIARS]


def final_model(run: RecordedRun) -> np.ndarray:
    machine = run.machine()
    resumed = Run.resume(machine, StoreSettings(run_dir=run.place))
    resumed.close()
    return machine.model.params


def test_a_poisoned_model_is_repaired_from_the_journal_alone(tmp_path: Path) -> None:
    run = record(tmp_path / "poisoned", 400, defense="asyncsgd", strength=-2.5)
    poisoned = distance(final_model(run))
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    never = record(tmp_path / "never", 400, defense="asyncsgd", liars=())
    left = distance(final_model(repaired))
    assert left < 0.5 * poisoned
    assert left < distance(final_model(never)) + 0.2
    assert repair.kept + repair.removed + repair.left_out == 400
    assert repair.left_out < 0.2 * repair.kept
    for each in (run, repaired, never):
        each.journal.close()


def test_a_run_wrecked_early_is_taken_back_to_its_sound_beginning(tmp_path: Path) -> None:
    run = record(tmp_path / "wrecked", 400, defense="asyncsgd", strength=-1000.0)
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    assert repair.left_out > 200, "answers computed on a wrecked model say nothing"
    assert distance(final_model(repaired)) <= distance(run.first), "no worse than where it began"
    assert sum(1 for _ in repaired.journal.entries(Event.LEFT_OUT)) == repair.left_out
    for each in (run, repaired):
        each.journal.close()


def test_nothing_of_the_ejected_is_left_in_the_new_run(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 100)
    repair = eject(run, NAMES, tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    clients = {entry.client for entry in repaired.journal.entries()}
    assert not clients & set(NAMES)
    assert sum(1 for _ in repaired.journal.entries(Event.ARRIVAL)) == repair.kept
    run.journal.close()
    repaired.journal.close()


def test_ejecting_no_one_changes_nothing(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 100)
    repair = eject(run, [], tmp_path / "same")
    assert repair.removed == 0
    assert repair.distance == 0.0
    run.journal.close()


REFUSED: dict[int, tuple[Vector | Reason, Reason]] = {
    3: (Reason.MALFORMED, Reason.MALFORMED),
    8: (np.zeros(PROBLEM.dim + 1, np.float32), Reason.WRONG_SHAPE),
    13: (np.full(PROBLEM.dim, np.nan, np.float32), Reason.NOT_FINITE),
    21: (np.full(PROBLEM.dim, 1e19, np.float32), Reason.TOO_LARGE),
}
"""Arrival -> what client-1 sends there, and why it is refused."""


def record_with_refusals(run_dir: Path, *, num_arrivals: int = 40, readable: bool = True) -> RecordedRun:
    """A run with updates that cannot be judged, and one that comes too late at its end."""
    settings = FederationSettings(
        run_dir=run_dir, defense="asyncsgd", server_lr=0.05, client_returns="gradient", max_staleness=10
    )
    machine = Machine(settings.make_defense(PROBLEM.dim), np.zeros(PROBLEM.dim, np.float32), settings.machine())
    run = Run(machine, settings, facts=settings.facts())
    slow = run.issue("slow")
    for version in range(num_arrivals):
        client = 1 if version in REFUSED else version % PROBLEM.num_clients
        ticket = run.issue(f"client-{client}")
        honest = PROBLEM.noisy_gradient(client, machine.model_of(ticket).params, np.random.default_rng(version))
        sent, _ = REFUSED.get(version, (honest, None))
        run.receive(ticket.number, sent if readable or version not in REFUSED else Reason.MALFORMED)
    assert run.receive(slow.number, np.ones(PROBLEM.dim, np.float32)).reason is Reason.TOO_STALE
    run.close()
    return RecordedRun.open(run_dir)


@pytest.mark.parametrize("ejected", [[], ["client-0"]])
def test_what_was_refused_is_refused_again_and_leaves_no_ticket_open(ejected: list[str], tmp_path: Path) -> None:
    run = record_with_refusals(tmp_path / "run")
    repair = eject(run, ejected, tmp_path / "repaired")
    assert repair.left_out == 0
    assert repair.kept + repair.removed == 36
    assert (repair.distance == 0.0) == (ejected == [])
    repaired = RecordedRun.open(tmp_path / "repaired")
    refused = [entry.reason for entry in repaired.journal.entries(Event.REFUSED)]
    assert refused == [*(reason for _, reason in REFUSED.values()), Reason.TOO_STALE]
    machine = repaired.machine()
    Run.resume(machine, StoreSettings(run_dir=repaired.place)).close()
    assert machine.open_tickets == []
    assert machine.held_versions == [machine.model.version]
    for each in (run, repaired):
        each.journal.close()


def test_what_cannot_be_judged_leaves_no_trace_in_the_repair(tmp_path: Path) -> None:
    models = []
    for readable in (True, False):
        run = record_with_refusals(tmp_path / f"run-{readable}", readable=readable)
        eject(run, ["client-0"], tmp_path / f"repaired-{readable}")
        repaired = RecordedRun.open(tmp_path / f"repaired-{readable}")
        models.append(final_model(repaired))
        for each in (run, repaired):
            each.journal.close()
    np.testing.assert_array_equal(models[0], models[1])


@pytest.mark.parametrize("values", [[3.0], [1.0, 4.0], [1.0, 2.0, 9.0], [1.0, 2.0, 3.0, 10.0]])
def test_the_median_of_sorted_numbers(values: list[float]) -> None:
    assert _median(values) == statistics.median(values)


def test_a_client_may_be_named_as_it_is_shown(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 60, names=["\x1b[2Jx", *(f"client-{k}" for k in range(1, 8))])
    assert eject(run, [r"\x1b[2Jx"], tmp_path / "repaired").removed > 0
    with pytest.raises(SettingsError, match=r"knows no client \\n; it has \\x1b\[2Jx, client-1"):
        eject(run, ["\n"], tmp_path / "other")
    run.journal.close()


def test_a_name_as_it_is_goes_before_a_name_as_it_is_shown(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 60, names=["\x1b", r"\x1b", *(f"client-{k}" for k in range(2, 8))])
    eject(run, [r"\x1b"], tmp_path / "repaired")
    repaired = RecordedRun.open(tmp_path / "repaired")
    left = {entry.client for entry in repaired.journal.entries(Event.ISSUED)}
    assert "\x1b" in left
    assert r"\x1b" not in left
    for each in (run, repaired):
        each.journal.close()


def test_only_the_client_at_hand_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a page per client, each mapped from a file beside the new run, released after use, and gone in the end."""
    released: list[int] = []
    monkeypatch.setattr("secureafl.server.review.eject.PAGE_BYTES", 1)
    monkeypatch.setattr("secureafl.history.pages.Pages.release", lambda pages, slot: released.append(slot))
    run = record(tmp_path / "run", 60)
    repair = eject(run, ["client-0"], tmp_path / "repaired")
    assert len(released) == repair.kept
    assert len(set(released)) == PROBLEM.num_clients - 1
    assert {path.name for path in (tmp_path / "repaired").iterdir()} <= {"run.db", "head", "lock", "snapshots"}
    run.journal.close()


def test_a_disk_without_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = record(tmp_path / "run", 20)
    monkeypatch.setattr("secureafl.history.pages.os.posix_fallocate", full)
    with pytest.raises(StoreError, match=r"cannot write to .*repaired: No space left on device"):
        eject(run, ["client-1"], tmp_path / "repaired")
    run.journal.close()


def test_a_client_nobody_knows_is_an_error(tmp_path: Path) -> None:
    run = record(tmp_path / "run", 10)
    with pytest.raises(SettingsError, match="knows no client nobody; it has client-"):
        eject(run, ["nobody"], tmp_path / "repaired")
    run.journal.close()
