"""What a run wrote down, for tests that watch it from outside."""

import time
from collections.abc import Callable
from pathlib import Path

from secureafl.errors import StoreError
from secureafl.server.record import sqlite
from secureafl.server.record.entries import Entry, Event


def read_journal(run_dir: Path) -> list[Entry]:
    """All rows; none if the run has not begun."""
    if not (run_dir / "head").exists():
        return []
    try:
        journal = sqlite.read_journal(run_dir / "run.db")
    except StoreError as error:
        if "holds no log of a run yet" not in str(error):
            raise
        return []
    rows = list(journal.entries())
    journal.close()
    return rows


def wait_for_arrivals(run_dir: Path, client: object, count: int, timeout: float) -> None:
    wait_for(run_dir, lambda rows: len(arrivals(rows, client)) >= count, timeout)


def wait_for_event(run_dir: Path, client: object, event: Event, timeout: float) -> None:
    wait_for(run_dir, lambda rows: event in {row.event for row in rows if row.client == str(client)}, timeout)


def wait_for(run_dir: Path, condition: Callable[[list[Entry]], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not ((rows := read_journal(run_dir)) and condition(rows)):
        assert time.monotonic() < deadline, f"the journal in {run_dir} does not say so after {timeout} s"
        time.sleep(1.0)


def refused(rows: list[Entry], client: object) -> list[Entry]:
    return [row for row in rows if row.event is Event.REFUSED and row.client == str(client)]


def arrivals(rows: list[Entry], client: object) -> list[Entry]:
    return [row for row in rows if row.event is Event.ARRIVAL and row.client == str(client)]
