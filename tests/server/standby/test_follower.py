"""A standby is where the leader is, bit for bit, notices what is not as it was written, and can lead at once."""

from typing import Any

import numpy as np
import pytest
from tests.postgres import Tamper
from tests.server.record.test_run import FACTS, advance, machine, settings, state, undisturbed

from secureafl.errors import StoreError
from secureafl.server.record import snapshots
from secureafl.server.record.address import Place, RunUrl, store_of
from secureafl.server.record.entries import Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.log_tables import Row
from secureafl.server.record.run import Run
from secureafl.server.standby.follower import Standby


@pytest.fixture
def place(run_url: RunUrl) -> Place:
    """Standbys follow runs in databases."""
    return run_url


def begin(place: Place, num_arrivals: int = 5, **options: object) -> Run:
    run = Run(machine(), settings(place, **options), facts=FACTS)
    advance(run, num_arrivals)
    run.journal.commit()
    return run


def standby_of(place: Place) -> Standby:
    return Standby(store_of(place), machine)


def is_full(run: Run) -> bool:
    """Whether the newest snapshot holds all of the state."""
    [newest, *_] = run.journal.snapshots()
    assert run._snapshots is not None
    return run._snapshots._is_full(newest[0], newest[2])


def state_of(standby: Standby) -> dict[str, bytes]:
    assert standby.machine is not None
    return {key: np.ascontiguousarray(value).tobytes() for key, value in standby.machine.state_dict().items()}


def test_a_standby_repeats_row_by_row_and_is_bit_for_bit_where_the_leader_is(place: Place) -> None:
    run = begin(place)
    standby = standby_of(place)
    assert standby.head.number == 0
    for _ in range(6):
        assert standby.follow() > 0
        assert standby.head == run.journal.head
        assert state_of(standby) == state(run)
        assert standby.lag().rows == 0
        advance(run, 5)
        run.journal.commit()
    assert standby.follow(limit=3) == 3
    assert standby.lag().rows == run.journal.head.number - standby.head.number > 0
    standby.close()
    run.close()


@pytest.mark.parametrize("full_every", [1, 3])
def test_a_standby_begins_at_the_newest_snapshot_and_compares_its_state_with_each_later_one(
    place: Place, full_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "WORTHWHILE", 1.0)  # even where all of a small state has changed
    run = begin(place, 12, snapshot_every=5, full_snapshot_every=full_every)
    standby = standby_of(place)
    assert standby.machine is not None
    assert standby.machine.model.version == 10
    advance(run, 13)
    assert standby.follow() > 0
    assert state_of(standby) == state(run)
    assert sum(1 for _ in run.journal.entries(Event.SNAPSHOT)) == 5
    assert is_full(run) == (full_every == 1)
    standby.close()
    run.close()


@pytest.mark.parametrize("full_every", [1, 3])
def test_another_state_at_a_snapshot_is_noticed(place: Place, full_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "WORTHWHILE", 1.0)
    run = begin(place, 3, full_snapshot_every=full_every)
    run.snapshot()
    standby = standby_of(place)
    standby.follow()
    assert standby.machine is not None
    standby.machine._average = standby.machine._average + np.float32(1.0)  # nothing that an arrival's hash would show
    run.snapshot()
    assert is_full(run) == (full_every == 1)
    with pytest.raises(StoreError, match="leads to another state"):
        standby.follow()
    run.close()


def test_a_snapshot_that_the_leader_has_removed_is_not_compared(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "WORTHWHILE", 1.0)
    run = begin(place, 3, snapshot_every=5, full_snapshot_every=2, keep_snapshots=1)
    standby = standby_of(place)
    standby.follow()
    advance(run, 18)
    assert standby.follow() > 0
    assert state_of(standby) == state(run)
    standby.close()
    run.close()


def test_another_model_after_an_arrival_is_noticed(place: Place) -> None:
    run = begin(place, 3)
    standby = standby_of(place)
    standby.follow()
    assert standby.machine is not None
    standby.machine._server_lr = np.float32(0.9)
    advance(run, 1)
    with pytest.raises(StoreError, match="leads to another model"):
        standby.follow()
    run.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE log SET reason = 'accepted!' WHERE number = (SELECT max(number) FROM log)",
            "is damaged or was changed",
        ),
        ("DELETE FROM log WHERE number = (SELECT max(number) - 1 FROM log)", "is missing"),
        ("DELETE FROM updates WHERE number = (SELECT max(number) FROM updates)", "is missing"),
    ],
)
def test_what_was_changed_behind_its_back_is_noticed(place: Place, tamper: Tamper, statement: str, said: str) -> None:
    run = begin(place, 3)
    standby = standby_of(place)
    standby.follow()
    advance(run, 3)
    run.close()
    tamper(statement)
    with pytest.raises(StoreError, match=said):
        standby.follow()


def test_a_standby_takes_over_where_it_is_without_reading_what_it_has_followed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(place, 8)
    standby = standby_of(place)
    standby.follow()
    advance(run, 2)  # that it has not repeated yet
    run.close()
    known = standby.head.number
    read: list[int] = []
    check = Journal._check_row

    def noting(journal: Journal, row: Row, *rest: Any) -> None:
        read.append(row[0])
        check(journal, row, *rest)

    monkeypatch.setattr(Journal, "_check_row", noting)
    led = standby.take_over(settings(place), facts=FACTS)
    assert min(read) > known
    monkeypatch.undo()
    assert state(led) == undisturbed(10)
    advance(led, 5)
    assert state(led) == undisturbed(15)
    led.close()
    again = standby_of(place)
    again.follow()
    assert state_of(again) == undisturbed(15)
    again.close()


def test_a_standby_that_fell_behind_what_was_forgotten_begins_anew(place: Place) -> None:
    run = begin(place, 3, snapshot_every=5, keep_rows=4, keep_snapshots=1)
    standby = standby_of(place)
    standby.follow()
    advance(run, 30)
    run.journal.commit()
    assert run.journal.entry(standby.head.number + 1) is None, "the next row was forgotten"
    standby.follow()
    assert state_of(standby) == state(run)
    standby.close()
    run.close()


def test_where_updates_are_not_kept_a_standby_goes_from_snapshot_to_snapshot(place: Place) -> None:
    run = begin(place, 3, journal="verdicts", snapshot_every=5)
    standby = standby_of(place)
    standby.follow()
    assert standby.machine is not None
    assert standby.machine.model.version == 0
    advance(run, 4)
    standby.follow()
    assert standby.machine.model.version == 5
    run.close()
    led = standby.take_over(settings(place, journal="verdicts", snapshot_every=5), facts=FACTS)
    assert led.machine.model.version == 5
    led.close()


def test_without_a_machine_rows_and_updates_are_checked(place: Place, tamper: Tamper) -> None:
    run = begin(place, 3)
    standby = Standby(store_of(place), None)
    advance(run, 3)
    assert standby.follow() > 0
    with pytest.raises(StoreError, match="has no machine"):
        standby.take_over(settings(place), facts=FACTS)
    advance(run, 1)
    run.close()
    tamper("UPDATE log SET client = 'x' WHERE number = (SELECT max(number) FROM log)")
    with pytest.raises(StoreError, match="is damaged or was changed"):
        standby.follow()


def test_the_end_of_a_run_is_noticed_and_a_resumption_too(place: Place) -> None:
    run = begin(place, 2)
    run.finish()
    run.close()
    standby = standby_of(place)
    assert standby.finished
    led = Run.resume(machine(), settings(place), facts=FACTS)
    standby.follow()
    assert not standby.finished
    standby.close()
    led.close()
