"""A run's folder: held by one server, read by its owner alone, bounded where the operator says so."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.record.test_run import FACTS, PROBLEM, advance, die, machine, settings, state, undisturbed

from secureafl import Reason
from secureafl.errors import StoreError
from secureafl.files import is_held
from secureafl.server.record import journal
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.run import Origin, Run
from secureafl.server.review.verify import verify


def test_a_second_server_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    advance(run, 5)
    run.journal.commit()
    draft = tmp_path / "snapshots" / ".000000000020.safetensors.1"
    draft.write_bytes(b"being written")
    command = (
        "from pathlib import Path\n"
        "from tests.server.record.test_run import FACTS, machine, settings\n"
        "from secureafl.server.record.run import Run\n"
        f"Run.resume(machine(), settings(Path({str(tmp_path)!r})), facts=FACTS)"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    second = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env=env, cwd=root)
    assert f"is in use by pid {os.getpid()} on " in second.stderr.splitlines()[-1]
    assert is_held(tmp_path)
    assert draft.exists()
    advance(run, 5)
    run.close()
    assert not is_held(tmp_path)


def test_folder_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        run = Run(machine(), settings(tmp_path / "run"), facts=FACTS)
        advance(run, 30)
        run.journal.commit()
        found = {path.relative_to(tmp_path): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        run.close()
    finally:
        os.umask(before)
    folders = {path for path in found if (tmp_path / path).is_dir()}
    assert {found.pop(path) for path in folders} == {0o700}
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("cut", range(15, 46, 3))
def test_a_journal_of_verdicts_is_resumed_from_every_point(cut: int, tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path, journal="verdicts"), facts=FACTS)
    advance(run, cut)
    run.journal.commit()
    die(run)
    resumed = Run.resume(machine(), settings(tmp_path, journal="verdicts"), facts=FACTS)
    assert resumed.machine.model.version == cut // 20 * 20
    np.testing.assert_array_equal(
        np.frombuffer(state(resumed)["params"], np.float32)[-12:],
        np.frombuffer(undisturbed(cut // 20 * 20)["params"], np.float32)[-12:],
    )
    [row] = resumed.journal.entries(Event.RESUMED)
    assert (f"{cut % 20} arrivals after the last snapshot are lost" in row.reason) == (cut % 20 > 0)
    advance(resumed, 3)
    resumed.journal.commit()
    die(resumed)
    again = Run.resume(machine(), settings(tmp_path, journal="verdicts"), facts=FACTS)
    assert again.machine.model.version in {cut // 20 * 20, cut // 20 * 20 + 20}
    again.close()


def test_the_runs_clock_goes_on_also_right_behind_a_snapshot(place: Place) -> None:
    now = 100.0
    run = Run(machine(), settings(place), facts=FACTS, clock=lambda: now)
    now = 150.0
    advance(run, 20)  # a snapshot, and nothing behind it
    die(run)
    now = 7.0  # of another boot
    resumed = Run.resume(machine(), settings(place), facts=FACTS, clock=lambda: now)
    assert resumed.seconds == 50.0
    resumed.close()


def test_old_rows_are_forgotten_and_the_rest_is_still_proven(place: Place) -> None:
    run = Run(machine(), settings(place, keep_rows=30), facts=FACTS)
    advance(run, 200)
    run.close()
    found = verify(place)
    assert found.head is not None
    assert found.num_rows < 130 < found.head.number
    resumed = Run.resume(machine(), settings(place, keep_rows=30), facts=FACTS)
    assert state(resumed) == undisturbed(200)
    advance(resumed, 5)
    assert state(resumed) == undisturbed(205)
    resumed.close()


@pytest.mark.parametrize("at_row", [1, 40])
def test_rows_that_are_forgotten_while_they_are_read_are_no_damage(
    place: Place, at_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(machine(), settings(place, keep_rows=30), facts=FACTS)
    advance(run, 60)
    run.journal.commit()
    monkeypatch.setattr(journal, "_BATCH", 5)
    reader, met, check = store_of(place).read(), 0, Journal._check_row

    def noting(checked: Journal, *row: Any) -> None:
        nonlocal met
        met += checked is reader
        if checked is reader and met == at_row:
            advance(run, 60)
        check(checked, *row)

    first = run.journal.snapshots()[-1][1]
    monkeypatch.setattr(Journal, "_check_row", noting)
    assert reader.check() == run.journal.head
    assert reader.forgotten >= first
    assert met > at_row, "while it was read"
    reader.close()
    run.close()


def test_rows_are_forgotten_by_age(place: Place) -> None:
    now = 0.0
    run = Run(machine(), settings(place, keep_seconds=10.0), facts=FACTS, clock=lambda: now)
    for moment in (1.0, 30.0, 60.0, 90.0):
        now = moment
        advance(run, 20)
    assert min(entry.seconds for entry in run.journal.entries()) >= 60.0
    run.close()
    verify(place)


def test_a_run_is_resumed_whose_setting_had_another_name(tmp_path: Path) -> None:
    named = {**FACTS, "defense": "secureafl"}
    Run(machine(), settings(tmp_path), facts={**named, "defense_settings": {"silence_after": 3}}).close()
    with pytest.raises(StoreError, match=r"was started with defense_settings\.exclude_after = 3, not 4"):
        Run.resume(machine(), settings(tmp_path), facts={**named, "defense_settings": {"exclude_after": 4}})
    Run.resume(machine(), settings(tmp_path), facts={**named, "defense_settings": {"exclude_after": 3}}).close()


def test_what_differs_is_named_by_its_own_name(tmp_path: Path) -> None:
    facts = {**FACTS, "defense_settings": {"lead": 0.3, "bucket": 2}, "seed": 11}
    Run(machine(), settings(tmp_path), facts=facts).close()
    with pytest.raises(StoreError, match=r"was started with defense_settings\.lead = 0\.3, not 0\.5"):
        Run.resume(machine(), settings(tmp_path), facts={**facts, "defense_settings": {"lead": 0.5, "bucket": 2}})
    with pytest.raises(StoreError) as caught:
        Run.resume(machine(), settings(tmp_path), facts={**facts, "seed": 12})
    assert str(caught.value).endswith("was started with another seed"), "and does not say which"
    Run.resume(machine(), settings(tmp_path), facts=facts).close()


def test_a_seed_is_drawn_once_and_found_again(place: Place) -> None:
    drawn = Origin.drawn()
    assert drawn != Origin.drawn()
    Run(machine(), settings(place), facts={**FACTS, "seed": drawn.seed}).close()
    assert Origin.on_record(place) == drawn


def test_what_died_before_it_began_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    advance(run, 3)
    run.close()
    assert verify(tmp_path).num_updates == 3


def test_the_text_of_a_reason_is_one_short_line(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    run.withdraw(run.issue("a").number, Event.CLIENT_ERROR, "boom\n\x1b[2J" + "x" * 100_000)
    [row] = run.journal.entries(Event.CLIENT_ERROR)
    run.close()
    assert len(row.reason) <= 200
    assert row.reason.isprintable()


def test_refused_updates_leave_no_bytes_behind(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path), facts=FACTS)
    run.receive(run.issue("a").number, np.full(PROBLEM.dim, np.nan, np.float32))
    run.receive(run.issue("a").number, Reason.TOO_LARGE)
    assert run.journal.update_bytes() == 0
    assert [row.reason for row in run.journal.entries(Event.REFUSED)] == ["not-finite", "too-large"]
    run.close()
