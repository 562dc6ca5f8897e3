import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.postgres import Tamper
from tests.support import Quadratic

from secureafl import Machine, MachineSettings, Reason
from secureafl.defenses import AsyncSGD
from secureafl.errors import StoreError
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.folder import FolderStore
from secureafl.server.record.postgres import PostgresTables
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare

PROBLEM = Quadratic()
FACTS: dict[str, object] = {"defense": "secureafl"}
LARGE_FACTS: dict[str, object] = {
    "defense": "asyncsgd",
    "defense_settings": {},
    "server_lr": 0.05,
    "max_staleness": None,
    "average_over": 200,
}


def machine() -> Machine:
    return Machine(PROBLEM.defense("secureafl"), np.zeros(12, np.float32), MachineSettings(server_lr=0.05))


def settings(run_dir: Place, **changes: object) -> StoreSettings:
    return StoreSettings(**{"run_dir": run_dir, "snapshot_every": 20, **changes})  # type: ignore[arg-type]


def advance(run: Run, num_arrivals: int) -> None:
    """Arrivals whose randomness depends on the version alone; some answers are garbage, some tickets stay open, some
    are withdrawn.
    """
    for _ in range(num_arrivals):
        version = run.machine.model.version
        rng = np.random.default_rng(version)
        client = int(rng.integers(7))
        ticket = run.issue(f"client-{client}")
        delta = PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng)
        if version % 13 == 5:
            run.receive(run.issue("client-1").number, Reason.MALFORMED)
        elif version % 17 == 3:
            run.receive(run.issue("client-2").number, np.full(12, np.nan, np.float32))
        if version % 7 == 1:
            run.withdraw(run.issue("client-0").number, Event.EXPIRED, "too slow")
        if version % 11 == 2:
            run.issue(f"straggler-{version}")
        run.receive(ticket.number, delta)


def die(run: Run) -> None:
    """As when the server's process is killed: the system lets go of what it had, and nothing else is done."""
    assert run._hold is not None
    run._hold.release()
    if isinstance(run.journal._tables, PostgresTables):
        run.journal._tables.close()


def state(run: Run) -> dict[str, bytes]:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in run.machine.state_dict().items()}


def undisturbed(num_arrivals: int) -> dict[str, bytes]:
    run = Run(machine())
    advance(run, num_arrivals)
    run.close()
    return state(run)


@pytest.mark.parametrize("cut", [0, 1, 19, 20, 21, 40, 57])
def test_a_resumed_run_goes_on_bit_for_bit(cut: int, place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, cut)
    run.journal.commit()
    die(run)
    resumed = Run.resume(machine(), settings(place), facts=FACTS)
    assert state(resumed) == state(run)
    run.close()
    advance(resumed, 70 - cut)
    assert state(resumed) == undisturbed(70)
    resumed.close()


def test_what_was_not_durable_was_not_handed_out(place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 10)
    run.issue("late")  # not durable yet
    run.journal._tables.rollback()  # the server dies here
    die(run)
    resumed = Run.resume(machine(), settings(place), facts=FACTS)
    assert resumed.machine.model.version == 10
    np.testing.assert_array_equal(resumed.machine.model.params, run.machine.model.params)
    run.close()
    resumed.close()


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    advance(run, 50)
    run.close()
    newest = max((tmp_path / "snapshots").glob("0*"))
    content = bytearray(newest.read_bytes())
    if damage == "remove":
        newest.unlink()
    elif damage == "truncate":
        newest.write_bytes(content[:-100])
    else:
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    resumed = Run.resume(machine(), settings(tmp_path), facts=FACTS)
    assert state(resumed) == undisturbed(50)
    [note] = list(resumed.journal.entries(Event.RESUMED))
    assert newest.name in note.reason
    resumed.close()


def test_a_snapshot_on_record_outlives_a_later_one_of_the_same_version(tmp_path: Path) -> None:
    only = settings(tmp_path, keep_snapshots=1, keep_rows=1)
    run = Run(machine(), only, facts=FACTS)
    advance(run, 20)
    run.issue("late")  # the state at the end is another one, of the same version
    assert run._snapshots is not None
    run.journal.commit()
    run._snapshots.write(20, run.machine.state_dict())  # the server dies before it is on record
    die(run)
    resumed = Run.resume(machine(), only, facts=FACTS)
    assert state(resumed) == state(run)
    assert [entry.reason for entry in resumed.journal.entries(Event.RESUMED)] == [""]
    resumed.finish()
    resumed.finish()
    assert len(list((tmp_path / "snapshots").glob("0*"))) == 1
    advance(resumed, 20)
    assert [path.stem for path in (tmp_path / "snapshots").glob("0*")] == ["000000000040"]
    run.close()
    resumed.close()


LARGE = 50_000


def large() -> Machine:
    return Machine(AsyncSGD(LARGE), np.zeros(LARGE, np.float32), MachineSettings(server_lr=0.05))


def large_run(run_dir: Path) -> None:
    run = Run(large(), settings(run_dir, snapshot_every=1000), facts=LARGE_FACTS)
    for number in range(60):
        run.receive(run.issue(f"client-{number % 3}").number, np.full(LARGE, 1.0, np.float32))
    run.close()


def resume_large(run_dir: Path) -> None:
    Run.resume(large(), settings(run_dir, snapshot_every=1000), facts=LARGE_FACTS).close()


def replay_large(run_dir: Path) -> None:
    run = RecordedRun.open(run_dir)
    compare(run, run.machine())
    run.journal.close()


def eject_large(run_dir: Path) -> None:
    run = RecordedRun.open(run_dir)
    eject(run, ["client-0"], run_dir.with_name("ejected"))
    run.journal.close()


@pytest.mark.parametrize(("task", "most"), [(resume_large, 16), (replay_large, 20), (eject_large, 24)])
def test_updates_are_read_one_at_a_time(task: Callable[[Path], None], most: int, tmp_path: Path) -> None:
    """Of 60 updates: what is in memory at once is some models and an update or two, counted in their size."""
    large_run(tmp_path / "run")
    tracemalloc.start()
    try:
        task(tmp_path / "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / (4 * LARGE) < most


def test_old_snapshots_are_removed(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path, keep_snapshots=2), facts=FACTS)
    advance(run, 100)
    run.close()
    assert sorted(path.stem for path in (tmp_path / "snapshots").glob("0*")) == ["000000000080", "000000000100"]


def test_the_journal_is_kept_within_its_bounds(place: Place) -> None:
    run = Run(machine(), settings(place, max_journal_bytes=1000), facts=FACTS)
    advance(run, 100)
    assert run.journal.update_bytes() <= 1000 + 20 * 48
    assert sum(1 for _ in run.journal.entries(Event.ARRIVAL)) == 100, "verdicts stay"
    run.close()
    resumed = Run.resume(machine(), settings(place, max_journal_bytes=1000), facts=FACTS)
    assert state(resumed) == undisturbed(100)
    resumed.close()


def test_a_journal_of_verdicts_goes_back_to_the_last_snapshot_and_says_so(place: Place) -> None:
    run = Run(machine(), settings(place, journal="verdicts"), facts=FACTS)
    advance(run, 50)
    run.close()
    resumed = Run.resume(machine(), settings(place, journal="verdicts"), facts=FACTS)
    assert resumed.machine.model.version in range(40, 50)
    [note] = list(resumed.journal.entries(Event.RESUMED))
    assert "are lost: journal = verdicts" in note.reason
    resumed.close()


def test_what_is_lost_is_said_first_however_many_snapshots_are_damaged(tmp_path: Path) -> None:
    kept = settings(tmp_path, journal="verdicts", snapshot_every=5, keep_snapshots=4)
    run = Run(machine(), kept, facts=FACTS)
    advance(run, 22)
    run.close()
    for snapshot in (tmp_path / "snapshots").glob("0*"):
        snapshot.write_bytes(b"damaged")
    resumed = Run.resume(machine(), kept, facts=FACTS)
    [note] = list(resumed.journal.entries(Event.RESUMED))
    assert note.reason.startswith("22 arrivals after the last snapshot are lost: journal = verdicts; snapshot ")
    resumed.close()


def test_a_lost_update_in_a_full_journal_is_an_error(place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 30)
    said = Entry(0.0, 30, "", Event.UPDATES_FORGOTTEN)
    run.journal.drop_updates(run.journal.last_number(), said)
    run.close()
    with pytest.raises(StoreError, match="has no update on record any more"):
        Run.resume(machine(), settings(place), facts=FACTS)


def test_an_update_that_is_missing_without_a_row_that_says_so_is_damage(place: Place, tamper: Tamper) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 30)
    run.close()
    [(first,)] = tamper("SELECT min(number) FROM updates")
    tamper("DELETE FROM updates")
    journal = store_of(place).read()
    with pytest.raises(StoreError, match=f"the update in row {first} is missing, and no row says why"):
        journal.check()
    journal.close()
    with pytest.raises(StoreError, match=f"the update in row {first} is missing, and no row says why"):
        Run.resume(machine(), settings(place), facts=FACTS)


def test_a_run_is_not_resumed_under_other_settings(place: Place) -> None:
    Run(machine(), settings(place), facts=FACTS).close()
    with pytest.raises(StoreError, match="was started with defense = 'secureafl', not 'kardam'"):
        Run.resume(machine(), settings(place), facts={"defense": "kardam"})


def test_another_first_model_is_noticed(place: Place) -> None:
    Run(machine(), settings(place), facts=FACTS).close()
    other = Machine(PROBLEM.defense("secureafl"), np.ones(12, np.float32), MachineSettings(server_lr=0.05))
    with pytest.raises(StoreError, match="first model"):
        Run.resume(other, settings(place), facts=FACTS)


def test_a_folder_that_holds_a_run_is_not_written_over(place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 3)
    run.close()
    with pytest.raises(StoreError, match="already holds a run: resume it, or"):
        Run(machine(), settings(place), facts=FACTS)


class DyingConnection:
    """A database whose server is killed at a statement."""

    def __init__(self, address: str, last: str) -> None:
        self._database = sqlite3.connect(address, isolation_level=None)
        self._last = last

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction

    def execute(self, statement: str, parameters: object = ()) -> object:
        if self._last in statement:
            raise KeyboardInterrupt
        return self._database.execute(statement, parameters)  # type: ignore[arg-type]

    def close(self) -> None:
        self._database.close()


@pytest.mark.parametrize("last", ["journal_mode", "synchronous", "CREATE TABLE updates", "COMMIT"])
def test_a_run_whose_server_died_before_it_began_can_be_started_again(last: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path, connect=lambda address: DyingConnection(address, last))
    with pytest.raises(KeyboardInterrupt):
        Run(machine(), settings(tmp_path), facts=FACTS, store=store)
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    advance(run, 3)
    run.close()


def test_a_damaged_run_is_not_taken_for_one_that_never_began(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    advance(run, 3)
    run.close()
    (tmp_path / "run.db").write_bytes(b"no database")
    with pytest.raises(StoreError, match="already holds a run"):
        Run(machine(), settings(tmp_path), facts=FACTS)
    assert (tmp_path / "run.db").read_bytes() == b"no database"


def test_nothing_to_resume_is_an_error(place: Place) -> None:
    with pytest.raises(StoreError, match="there is no run to resume"):
        Run.resume(machine(), settings(place), facts=FACTS)


def test_an_answer_to_no_ticket_is_on_record_and_changes_nothing(place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 3)
    before = state(run)
    assert run.receive(999, np.zeros(12, np.float32)).reason == Reason.UNSOLICITED
    assert state(run) == before
    assert [entry.event for entry in run.journal.entries()][-1] is Event.UNSOLICITED
    run.close()


def test_a_changed_row_is_found(place: Place, tamper: Tamper) -> None:
    run = Run(machine(), settings(place, snapshot_every=1000), facts=FACTS)
    advance(run, 10)
    run.close()
    tamper("UPDATE log SET base = base - 1 WHERE number = 4")
    with pytest.raises(StoreError, match="row 4 is damaged or was changed"):
        Run.resume(machine(), settings(place, snapshot_every=1000), facts=FACTS)


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write to the run's folder"):
        Run(machine(), settings(tmp_path / "file" / "run"))


def test_a_finished_run_says_so_and_can_still_be_resumed(place: Place) -> None:
    run = Run(machine(), settings(place), facts=FACTS)
    advance(run, 30)
    run.finish()
    run.close()
    resumed = Run.resume(machine(), settings(place), facts=FACTS)
    advance(resumed, 5)
    assert [entry.event for entry in resumed.journal.entries() if not entry.client][-4:] == [
        Event.SNAPSHOT,
        Event.SNAPSHOT,
        Event.FINISHED,
        Event.RESUMED,
    ]
    assert state(resumed) == undisturbed(35)
    resumed.close()
