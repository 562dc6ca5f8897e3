import sqlite3
from pathlib import Path

import pytest
from tests.server.recorded_runs import record
from tests.view.journals import append_arrivals, write_arrivals

from secureafl.errors import StoreError
from secureafl.files import FolderLock
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import create_journal, open_journal, read_journal
from secureafl.server.review.audit import client_records
from secureafl.view.reader import IDLE_SECONDS, RunReader, State


def test_clients_are_those_of_the_audit(tmp_path: Path) -> None:
    run = record(tmp_path, 200)
    reader = RunReader(tmp_path)
    for audited in client_records(run):
        seen = reader.records[audited.client].summary()
        assert {**seen, "influence": audited.influence} == audited.summary()
    assert len(reader.arrivals) == 200
    assert sum(reader.rejections.values()) == sum(not accepted for accepted in reader.arrivals.table.accepted)
    run.journal.close()


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    append_arrivals(journal, 10)
    reader = RunReader(tmp_path)
    assert (len(reader.arrivals), reader.last_number) == (10, 20)
    assert not reader.refresh()
    append_arrivals(journal, 3, first=10)
    assert not reader.refresh(min_seconds=3600.0), "it was read just now"
    assert reader.refresh()
    assert reader.arrivals.table.version.tolist() == list(range(13))
    assert sum(record.arrivals for record in reader.records.values()) == 13
    journal.close()


def test_a_run_is_live_then_finished_then_live_again(tmp_path: Path) -> None:
    journal, server = create_journal(tmp_path / "run.db"), FolderLock(tmp_path)
    append_arrivals(journal, 2)
    reader = RunReader(tmp_path)
    states = [reader.state]
    for event in (Event.FINISHED, Event.RESUMED):
        journal.append(Entry(1.0, 2, "", event))
        reader.refresh()
        states.append(reader.state)
    server.release()  # as when it is killed
    reader.refresh()
    states.append(reader.state)  # nobody holds it, and its end was not written down
    journal.close()
    assert states == [State.LIVE, State.FINISHED, State.LIVE, State.STOPPED]
    assert [state.over for state in states] == [False, True, False, True]


def test_a_run_that_stops_while_it_is_read_is_stopped(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    append_arrivals(journal, 2)
    beside = read_journal(tmp_path / "run.db")  # SQLite tidies up only after the last of all who have it open
    journal.close()
    reader = RunReader(tmp_path)
    assert (reader.state, len(reader.arrivals)) == (State.STOPPED, 2)
    beside.close()


def test_a_run_that_stops_just_before_it_is_read_is_stopped(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")
    append_arrivals(journal, 2)
    journal.close()
    late = sqlite3.connect(f"{(tmp_path / 'run.db').as_uri()}?mode=ro", uri=True)  # as one who still saw a writer
    late.execute("SELECT count(*) FROM log")
    assert (tmp_path / "run.db-wal").exists(), "SQLite made a new one, empty"
    reader = RunReader(tmp_path)
    assert (reader.state, len(reader.arrivals)) == (State.STOPPED, 2)
    late.close()


def test_a_run_that_writes_nothing_for_a_while_is_idle(tmp_path: Path) -> None:
    journal, server = create_journal(tmp_path / "run.db"), FolderLock(tmp_path)
    append_arrivals(journal, 2)
    now = (tmp_path / "run.db-wal").stat().st_mtime
    assert RunReader(tmp_path, clock=lambda: now + IDLE_SECONDS - 1.0).state is State.LIVE
    assert RunReader(tmp_path, clock=lambda: now + IDLE_SECONDS + 1.0).state is State.IDLE
    server.release()
    journal.close()


def test_an_arrival_is_found_with_all_its_evidence(tmp_path: Path) -> None:
    run = record(tmp_path, 30)
    reader = RunReader(tmp_path)
    for entry in run.journal.entries(Event.ARRIVAL):
        assert reader.arrival(entry.version) == entry
    assert reader.arrival(30) is None
    run.journal.close()


def test_nothing_in_the_folder_changes(tmp_path: Path) -> None:
    record(tmp_path, 30).journal.close()
    left_over = tmp_path / "snapshots" / ".000000000099.safetensors.1"  # what a live server is just writing
    left_over.write_bytes(b"half a snapshot")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    reader = RunReader(tmp_path)
    reader.refresh()
    reader.arrival(3)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_another_run_in_the_same_folder_is_read_from_its_start(tmp_path: Path) -> None:
    write_arrivals(tmp_path, 50)
    reader = RunReader(tmp_path)
    (tmp_path / "run.db").rename(tmp_path / "old.db")
    write_arrivals(tmp_path, 7, clients=("new",))
    assert reader.refresh()
    assert list(reader.records) == ["new"]
    assert len(reader.arrivals) == 7


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run: there is no run\.db in it; name the folder"):
        RunReader(tmp_path)
    write_arrivals(tmp_path / "run", 3)
    reader = RunReader(tmp_path / "run")
    (tmp_path / "run" / "run.db").unlink()
    with pytest.raises(StoreError, match="holds no run"):
        reader.refresh()


@pytest.mark.slow
def test_a_long_run_stays_quick(tmp_path: Path) -> None:
    """100,000 arrivals with updates of 4 kB: what is new is read without touching the rest."""
    write_arrivals(tmp_path, 100_000, clients=tuple(f"client-{k}" for k in range(500)), payload=bytes(4096))
    reader = RunReader(tmp_path)
    assert len(reader.arrivals) == 100_000
    journal = open_journal(tmp_path / "run.db")
    append_arrivals(journal, 10, first=100_000)
    read: list[str] = []
    reader.arrivals.add = lambda entry: read.append(entry.client)  # type: ignore[method-assign]
    reader.refresh()
    assert len(read) == 10
    journal.close()
