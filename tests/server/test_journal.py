import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from secureafl.errors import StoreError
from secureafl.server.journal import Entry, Event, Journal

ARRIVAL = Entry(
    1.5, 3, "hospital", Event.ARRIVAL, "accepted", True, {"norm": 2.0, "threshold": math.inf}, 7, 2, b"1234", b"hash"
)
LEFT = Entry(2.0, 4, "hospital", Event.LEFT, "node gone")


def unnumbered(entries: object) -> list[Entry]:
    return [replace(entry, number=None) for entry in entries]  # type: ignore[attr-defined]


def test_entries_come_back_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    journal.append(LEFT)
    journal.close()
    again = Journal(tmp_path / "run.db")
    assert unnumbered(again.entries(payloads=True)) == [ARRIVAL, LEFT]
    assert unnumbered(again.entries()) == [replace(ARRIVAL, payload=None, model=None), LEFT]
    assert unnumbered(again.entries(Event.LEFT)) == [LEFT]
    assert unnumbered(again.entries(after=1)) == [LEFT]
    again.close()


def test_long_journals_are_read_in_pieces(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    for version in range(1_234):
        journal.append(replace(LEFT, version=version), durable=False)
    assert [entry.version for entry in journal.entries()] == list(range(1_234))
    journal.close()


def test_entries_that_may_wait_are_seen_by_others_with_the_next_durable_one(tmp_path: Path) -> None:
    journal, reader = Journal(tmp_path / "run.db"), Journal(tmp_path / "run.db")
    journal.append(LEFT, durable=False)
    assert list(reader.entries()) == []
    journal.append(ARRIVAL)
    assert len(list(reader.entries())) == 2
    journal.close()
    reader.close()


def test_anyone_can_read_the_database(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    with sqlite3.connect(tmp_path / "run.db") as reader:
        found = reader.execute("SELECT client, accepted, json_extract(evidence, '$.norm') FROM log").fetchall()
    reader.close()
    journal.close()
    assert found == [("hospital", 1, 2.0)]


def test_a_flipped_bit_in_an_update_is_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    with sqlite3.connect(tmp_path / "run.db") as vandal:
        vandal.execute("UPDATE log SET payload = ?", [b"1235"])
    vandal.close()
    with pytest.raises(StoreError, match="the update in row 1 is damaged"):
        list(journal.entries(payloads=True))
    journal.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match=r"run\.db: file is not a database"):
        Journal(tmp_path / "run.db")


def test_a_reader_sees_a_live_run_and_cannot_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    reader = Journal.reading(tmp_path / "run.db")
    journal.append(LEFT)
    assert [entry.event for entry in reader.entries()] == [Event.ARRIVAL, Event.LEFT]
    with pytest.raises(StoreError, match="readonly"):
        reader.append(LEFT)
    reader.close()
    journal.close()


def test_reading_a_closed_run_leaves_no_trace(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db")
    journal.append(ARRIVAL)
    journal.close()
    before = (tmp_path / "run.db").read_bytes()
    reader = Journal.reading(tmp_path / "run.db")
    assert len(list(reader.entries())) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
    reader.close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
    assert (tmp_path / "run.db").read_bytes() == before


def test_reading_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot open"):
        Journal.reading(tmp_path / "run.db")
    assert list(tmp_path.iterdir()) == []
