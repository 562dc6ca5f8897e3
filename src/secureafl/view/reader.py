"""What a run's database says, taken in row by row as it grows. Reads only, and only what is new."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.names import names_of
from secureafl.server.record.store import StandbyReport
from secureafl.server.review.audit import ClientRecord
from secureafl.view.arrivals import Arrivals

IDLE_SECONDS = 60.0
KEPT_EVENTS = 1000
NO_TROUBLE = {
    Event.JOINED,
    Event.REPORTED,
    Event.FINISHED,
    Event.RESUMED,
    Event.SNAPSHOT,
    Event.FORGOTTEN,
    Event.UPDATES_FORGOTTEN,
}


class State(StrEnum):
    """Whether more is to be expected of a run."""

    LIVE = "live"
    IDLE = "idle"
    """Its server is there, but nothing was written for a minute: its clients are slow."""
    STOPPED = "stopped"
    """No server holds the run, and the run did not come to its end."""
    FINISHED = "finished"

    @property
    def over(self) -> bool:
        """Whether nothing more will come unless somebody resumes the run."""
        return self in (State.STOPPED, State.FINISHED)


class RunReader:
    """One run's arrivals, clients and events. Threads share it by holding `lock`."""

    def __init__(self, place: Place, *, names: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """`names` is a file of clients' names; without one, those that are kept with the run are shown."""
        self.place = place
        self.lock = threading.RLock()
        self._store = store_of(place)
        self._clock = clock
        self.names = names_of(self._store, names)
        self._clear()
        self.refresh()

    def _clear(self) -> None:
        self.facts: dict[str, Any] = {}
        self.arrivals = Arrivals()
        self.records: dict[str, ClientRecord] = {}
        self._by_name: list[ClientRecord] = []
        self._listed: tuple[Hashable, list[ClientRecord]] = None, []
        self.rejections: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.events: deque[Entry] = deque(maxlen=KEPT_EVENTS)
        """What happened beside arrivals, the newest at the end."""
        self.standbys: list[StandbyReport] = []
        self.last_number = 0
        self.seconds = 0.0
        self._finished = False
        self._closed = False
        self._identity = self._store.identity()
        self._read_at = float("-inf")

    def refresh(self, min_seconds: float = 0.0) -> bool:
        """Take in what was written since the last time, unless that was just now; True if there was anything."""
        with self.lock:
            if time.monotonic() - self._read_at < min_seconds:
                return False
            if self._store.identity() != self._identity:  # another run took the place over
                self._clear()
            before = self.last_number
            closed = not self._store.is_held()  # asked first: what a writer leaves last is read then
            with self._reading() as journal:
                if not self.facts:
                    journal.check()
                    self.facts = {name: fact for name, fact in journal.facts().items() if name != "seed"}
                for entry in journal.entries(after=self.last_number):
                    self._take(entry)
            if len(self._by_name) != len(self.records):
                self._sort()
            self._closed = closed
            self.standbys = self._store.standbys()
            self._read_at = time.monotonic()
            return self.last_number > before

    def by_name(self) -> list[ClientRecord]:
        """The records in the order of their clients' ids. It is not to be changed."""
        return self._by_name

    def _sort(self) -> None:
        """Put records of new clients in their places."""
        new = itertools.islice(self.records, len(self._by_name), None)
        self._by_name.extend(map(self.records.__getitem__, new))
        self._by_name.sort(key=lambda record: record.client)

    def listed(self, asked: Hashable, find: Callable[[], list[ClientRecord]]) -> list[ClientRecord]:
        """What `find` gives, kept until something is written or another list is asked for: its next page is at hand."""
        if self._listed[0] != (asked, self.last_number):
            self._listed = (asked, self.last_number), find()
        return self._listed[1]

    @property
    def state(self) -> State:
        """Where the run stands."""
        if self._finished:
            return State.FINISHED
        if self._closed:
            return State.STOPPED
        return State.IDLE if self.quiet_seconds > IDLE_SECONDS else State.LIVE

    @property
    def quiet_seconds(self) -> float:
        """Time since the run last wrote anything."""
        return max(0.0, self._clock() - self._store.written_at())

    def arrival(self, version: int) -> Entry | None:
        """The arrival that met the model of this version, with all its evidence."""
        with self.lock:
            table = self.arrivals.table
            place = int(table.version.searchsorted(version))
            if place == len(table) or table.version[place] != version:
                return None
            number = int(table.number[place])
        with self._reading() as journal:
            return journal.entry(number)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Journal]:
        """Opened anew each time, so that a run that is resumed or finished meanwhile is seen as what it is."""
        journal = self._store.read()
        try:
            yield journal
        finally:
            journal.close()

    def _take(self, entry: Entry) -> None:
        assert entry.number is not None
        self.last_number = entry.number
        self.seconds = max(self.seconds, entry.seconds)
        if entry.event is Event.ISSUED:
            return
        if entry.event in (Event.FINISHED, Event.RESUMED):
            self._finished = entry.event is Event.FINISHED
        if entry.client:
            self.records.setdefault(entry.client, ClientRecord(entry.client)).add(entry)
        if entry.event is Event.ARRIVAL:
            self.arrivals.add(entry)
            if not entry.accepted:
                self.rejections[entry.reason] += 1
        else:
            if entry.event is not Event.REPORTED:  # as many as there are updates
                self.events.append(entry)
            if entry.event not in NO_TROUBLE:
                self.troubles[entry.event] += 1
