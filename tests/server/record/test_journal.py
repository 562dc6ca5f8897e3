import math
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.postgres import Tamper

from secureafl.errors import StoreError
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import create_journal, lies_still, open_journal, read_journal
from secureafl.server.record.store import Store

ARRIVAL = Entry(
    1.5, 3, "hospital", Event.ARRIVAL, "accepted", True, {"norm": 2.0, "threshold": math.inf}, 7, 2, b"1234", b"hash"
)
LEFT = Entry(2.0, 4, "hospital", Event.LEFT, "node gone")


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """A place that this test holds."""
    store = store_of(place)
    hold = store.hold()
    store.clear()
    yield store
    hold.release()


def unnumbered(entries: object) -> list[Entry]:
    return [replace(entry, number=None, sent=None) for entry in entries]  # type: ignore[attr-defined]


def test_entries_come_back_as_they_were_written(store: Store) -> None:
    journal = store.create({})
    journal.append(ARRIVAL)
    journal.append(LEFT)
    journal.close()
    again = store.open()
    assert unnumbered(again.entries(payloads=True)) == [ARRIVAL, LEFT]
    assert unnumbered(again.entries()) == [replace(ARRIVAL, payload=None), LEFT]
    assert unnumbered(again.entries(Event.LEFT)) == [LEFT]
    assert unnumbered(again.entries(after=1)) == [LEFT]
    again.close()


def test_long_journals_are_read_in_pieces(store: Store) -> None:
    journal = store.create({})
    for version in range(1_234):
        journal.append(replace(LEFT, version=version), durable=False)
    assert [entry.version for entry in journal.entries()] == list(range(1_234))
    journal.close()


def test_entries_that_may_wait_are_seen_by_others_with_the_next_durable_one(store: Store) -> None:
    journal = store.create({})
    reader = store.read()
    journal.append(LEFT, durable=False)
    assert list(reader.entries()) == []
    journal.append(ARRIVAL)
    assert len(list(reader.entries())) == 2
    journal.close()
    reader.close()


def test_anyone_can_read_the_database(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    with sqlite3.connect(tmp_path / "run.db") as reader:
        found = reader.execute("SELECT client, accepted, json_extract(evidence, '$.norm') FROM log").fetchall()
    reader.close()
    journal.close()
    assert found == [("hospital", 1, 2.0)]


def test_a_flipped_bit_in_an_update_is_found(store: Store, alter_update: Callable[[int], None]) -> None:
    journal = store.create({})
    journal.append(ARRIVAL)
    alter_update(1)
    with pytest.raises(StoreError, match="the update in row 1 is damaged"):
        list(journal.entries(payloads=True))
    journal.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"run\.db: file is not a database"):
        open_journal(tmp_path / "run.db")


def test_a_reader_sees_a_live_run_and_cannot_write(store: Store) -> None:
    journal = store.create({})
    journal.append(ARRIVAL)
    reader = store.read()
    journal.append(LEFT)
    assert [entry.event for entry in reader.entries()] == [Event.ARRIVAL, Event.LEFT]
    with pytest.raises(StoreError, match="opened to be read"):
        reader.append(LEFT)
    reader.close()
    journal.close()


def test_reading_a_closed_run_leaves_no_trace(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    journal.close()
    before = (tmp_path / "run.db").read_bytes()
    reader = read_journal(tmp_path / "run.db")
    assert len(list(reader.entries())) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["head", "run.db"]
    reader.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["head", "run.db"]
    assert (tmp_path / "run.db").read_bytes() == before


def test_reading_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        read_journal(tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_cannot_be_created_leaves_no_file_open(tmp_path: Path) -> None:
    closed = []

    class Failing:
        in_transaction = False

        def execute(self, statement: str, parameters: object = ()) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None:
            closed.append(True)

    with pytest.raises(StoreError, match="cannot be written: disk I/O error"):
        create_journal(tmp_path / "run.db", connect=lambda address: Failing())
    assert closed == [True]


def test_changed_facts_are_found_also_after_the_first_rows_were_forgotten(store: Store, tamper: Tamper) -> None:
    journal = store.create({"server_lr": 1.0})
    for _ in range(3):
        journal.append(LEFT)
    journal.forget(2, replace(LEFT, event=Event.FORGOTTEN))
    journal.close()
    tamper("UPDATE facts SET value = '2.0' WHERE name = 'server_lr'")
    with pytest.raises(StoreError, match="the facts are damaged or were changed"):
        store.open()


@pytest.mark.parametrize("change", ["value = '{'", "value = x'00ff'", "name = x'00ff'"])
def test_facts_that_cannot_be_read_are_named(change: str, tmp_path: Path) -> None:
    create_journal(tmp_path / "run.db", {"server_lr": 1.0}).close()
    with sqlite3.connect(tmp_path / "run.db") as vandal:
        vandal.execute(f"UPDATE facts SET {change} WHERE name = 'server_lr'")
    vandal.close()

    def read() -> None:
        journal = read_journal(tmp_path / "run.db")
        try:
            journal.facts()
            journal.check()
        finally:
            journal.close()

    with pytest.raises(StoreError, match="its facts cannot be read"):
        read()


def test_what_a_killed_server_left_is_moved_out_of_the_write_ahead_log_before_more_is_written(tmp_path: Path) -> None:
    """It may never have reached the disk, if the server died of a failed sync."""
    (tmp_path / "killed").mkdir()
    journal = create_journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    for name in ("run.db", "run.db-wal", "head"):
        shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    journal.close()
    again = open_journal(tmp_path / "killed" / "run.db")
    assert lies_still(tmp_path / "killed" / "run.db")
    assert unnumbered(again.entries(payloads=True)) == [ARRIVAL]
    again.close()
