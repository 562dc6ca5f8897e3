"""A standby is the machine of a run, fed from the log while another server writes it.

It repeats every row, and checks on the way all that can be checked: the chain of rows, the SHA-256 of every update, of
the model after every arrival, and of the whole state at every snapshot. So it is bit for bit where the leader is, and
can lead as soon as it has the lease.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from secureafl.errors import StoreError, UnreachableError
from secureafl.files import safetensors_parts
from secureafl.server.machine import Machine
from secureafl.server.record.chain import Head
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.increments import as_bytes
from secureafl.server.record.journal import Journal
from secureafl.server.record.run import Run, StoreSettings, model_hash, repeat
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.record.store import Store
from secureafl.types import UNJUDGED, Array


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a standby is behind the log."""

    rows: int
    """That it has yet to repeat."""
    seconds: float
    """Since it last had all of them; 0 if it has."""


class Standby:
    """Follows one run. Calls come from one thread at a time."""

    def __init__(
        self,
        store: Store,
        new_machine: Callable[[], Machine] | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` is that of a database. `new_machine` makes the run's machine as at its start. Without one, the rows
        and their updates are checked and none is repeated.
        """
        self._store = store
        self._new_machine = new_machine
        self._clock = clock
        self._snapshots = Snapshots(store.files)
        self._journal: Journal | None = None
        self.finished = False
        """Whether the newest row says that the run has come to its end."""
        self.num_rows = 0
        """Rows that were repeated since this standby began."""
        self._current_at = clock()
        self._newest = 0
        self._begin()

    def _begin(self) -> None:
        """Check the whole log, and take the machine to the newest intact snapshot."""
        journal = self._reading()
        newest = journal.check()
        if newest is None:
            raise StoreError(f"{self._store} was written by 0.1 and has no chain: resume it once to give it one")
        self._machine = None if self._new_machine is None else self._new_machine()
        if self._machine is not None:
            first = model_hash(self._machine.model.params).hex()
            if journal.facts().get("first model", first) != first:
                raise StoreError(f"{self._store} was started with another first model than this standby's")
        self._lost = False  # an arrival that the machine cannot repeat: it waits for the next snapshot
        self.head = newest
        self._newest = newest.number
        for entry in journal.entries(leave_out=Event.ARRIVAL):
            self._notice(entry)
        if self._machine is not None:
            self.head = self._load_newest(journal)

    def _load_newest(self, journal: Journal) -> Head:
        assert self._machine is not None
        for version, number, sha256 in journal.snapshots():
            try:
                self._machine.load_state_dict(self._snapshots.read(version, sha256))
            except UnreachableError:
                raise
            except StoreError:  # damaged, or just removed by the leader
                continue
            before = journal.hash_before(number + 1)
            assert before is not None
            return Head(number, before)
        before = journal.hash_before(1)
        if before is None and journal.last_number():
            raise StoreError(f"{self._store}: no snapshot is intact, and the first rows were forgotten")
        return Head(0, journal.first_hash())

    def close(self) -> None:
        """Follow no more."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _reading(self) -> Journal:
        if self._journal is None:
            self._journal = self._store.read()
        return self._journal

    @property
    def machine(self) -> Machine | None:
        """As it stands after row `head`."""
        return self._machine

    def lag(self) -> Lag:
        """How far this standby is behind what it last knew of the log."""
        rows = max(0, self._newest - self.head.number)
        return Lag(rows, self._clock() - self._current_at if rows else 0.0)

    def follow(self, limit: int | None = None) -> int:
        """Repeat what was written since the last call, up to so many rows; returns how many.

        `StoreError` says what is not as it was written, or led to another model; `UnreachableError` that the database
        is not there: call again.
        """
        try:
            journal = self._reading()
            self._newest = max(self.head.number, journal.last_number())
            try:
                return self._follow(journal, limit)
            except UnreachableError:
                raise
            except StoreError:
                if journal.hash_before(self.head.number + 1) is not None:
                    raise
                self._begin()  # the leader forgot rows that this standby had not come to; else this says what is wrong
                return self._follow(journal, limit)
        except StoreError:
            self.close()  # the connection may be what is broken
            raise

    def _follow(self, journal: Journal, limit: int | None) -> int:
        num_rows = 0
        for head, entry in journal.following(self.head):
            self._take(entry)
            self.head = head
            num_rows += 1
            if num_rows == limit:
                break
        self.num_rows += num_rows
        if self.head.number >= self._newest:
            self._newest, self._current_at = self.head.number, self._clock()
        return num_rows

    def _take(self, entry: Entry) -> None:
        self._notice(entry)
        if self._machine is None:
            return
        if entry.event is Event.SNAPSHOT:
            self._compare(self._machine, entry)
        elif entry.event is Event.ARRIVAL and entry.payload is None and entry.reason not in UNJUDGED:
            self._lost = True
        elif not self._lost:
            repeat(self._machine, entry, str(self._store))

    def _notice(self, entry: Entry) -> None:
        if entry.event in (Event.FINISHED, Event.RESUMED):
            self.finished = entry.event is Event.FINISHED

    def _compare(self, machine: Machine, entry: Entry) -> None:
        """The leader's whole state has the hash that this machine's has, or is the same array by array."""
        if self._lost:
            with contextlib.suppress(StoreError):  # the leader has removed it: there is a newer one
                machine.load_state_dict(self._snapshots.read(entry.version, entry.reason))
                self._lost = False
            return
        state, total = machine.state_dict(), hashlib.sha256()
        for part in safetensors_parts(state):
            total.update(part)
        if total.hexdigest() == entry.reason:
            return
        try:  # the hash may be that of what changed alone
            recorded = self._snapshots.read(entry.version, entry.reason)
        except UnreachableError:
            raise
        except StoreError:  # the leader has removed it: there is a newer one
            return
        if state.keys() != recorded.keys() or not all(_same(state[name], recorded[name]) for name in state):
            raise StoreError(f"{self._store}: repeating the rows up to {entry.number} leads to another state")

    def take_over(
        self,
        settings: StoreSettings,
        *,
        facts: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Run:
        """Lead the run from where this standby is, once nobody else does: waits for the rest of a lease that its holder
        does not renew. What was written meanwhile is repeated first. This standby follows no more.
        """
        self.close()
        if self._machine is None:
            raise StoreError(f"{self._store}: this standby has no machine: it only checks")
        if self._lost and self._new_machine is not None:  # as after any crash: from the last snapshot
            return Run.resume(self._new_machine(), settings, facts=facts, clock=clock, store=self._store)
        return Run.resume(self._machine, settings, facts=facts, clock=clock, store=self._store, repeated=self.head)


def _same(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit for bit."""
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape) == (other.dtype, other.shape) and as_bytes(one) == as_bytes(other)
