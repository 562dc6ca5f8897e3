"""Take clients out of a finished run, after the fact: remove their contribution from the model.

The run is repeated from its first model without the ejected clients, from the journal alone; nobody is asked for
anything. The others' recorded updates were computed on models that the ejected ones had a hand in, so each is moved to
the model that stands in its place on the new path by the client's own curvature:

    update' = update + B (new base - old base),   B by L-BFGS from that client's recorded updates, and bounded

An update computed on a model much further from the new path than that path has come from its start says nothing about
it and is left out. If the ejected clients wrecked the model early, that is most of them, and no journal can bring back
what nobody computed: the repaired run is then little more than its beginning, to be resumed.

This is the idea of FedRecover (X. Cao et al., S&P 2023) in the asynchronous setting. What comes out is a new run of its
own, with a journal, that can be resumed.
"""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secureafl.defenses.base import distance, norm
from secureafl.errors import StoreError
from secureafl.history import DELTA, History
from secureafl.server.machine import Machine
from secureafl.server.record.address import Place
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.names import ClientNames
from secureafl.server.record.run import Run, StoreSettings, recorded_delta, repeat
from secureafl.server.review.opened import RecordedRun
from secureafl.types import Model, Reason, Update, Vector

MEMORY = 3
MAX_CORRECTION = 1.0  # in lengths of the recorded update
FREE_STEPS = 10  # so many usual steps may lie between the two paths in any case
PAGE_BYTES = 1 << 24  # of the history in its files: what is in memory at a time

REASONS = {str(reason): reason for reason in Reason}  # as the journal spells them


@dataclass(frozen=True, slots=True)
class Repair:
    """What an ejection did."""

    kept: int
    """Arrivals on the new path."""
    removed: int
    """Arrivals of the ejected clients."""
    left_out: int
    """Other arrivals whose model was too far away from the new path."""
    distance: float
    """Between the old final model and the new one, Euclidean."""


def eject(
    run: RecordedRun,
    clients: Collection[str],
    out: Place,
    *,
    machine: Machine | None = None,
    names: ClientNames = ClientNames(),
) -> Repair:
    """Rebuild the run without these clients in `out`: each by its id, its name, or the beginning of one.

    `machine` takes the place of one like the run's own.
    """
    run.require_updates("eject")
    known = {entry.client for entry in run.journal.entries(Event.ISSUED)}
    ejected = {names.find(client, known, str(run.place)) for client in clients}
    facts = {name: value for name, value in run.facts.items() if name != "first model"}
    new = Run(machine or run.machine(), StoreSettings(run_dir=out), facts=facts)
    try:
        # beside the new run, if that is in a folder: a temporary folder elsewhere may be in memory
        beside = out if isinstance(out, Path) else None
        with tempfile.TemporaryDirectory(prefix=".eject-", dir=beside) as folder:
            return _follow(run, ejected, new, Path(folder))
    except OSError as error:
        raise StoreError(f"cannot write to {out}: {error.strerror or error}") from None
    finally:
        new.close()


def _follow(run: RecordedRun, ejected: Collection[str], new: Run, folder: Path) -> Repair:
    """Walk the run from its beginning to its end; `folder` is for what must not fill the memory."""
    old = run.machine()
    where = str(run.place)
    path = _Path(old, new, folder, where)
    removed = 0
    for entry in run.journal.entries(payloads=True):
        if entry.client not in ejected:
            path.follow(entry)
        elif entry.event is Event.ARRIVAL:
            removed += 1
        path.advance_old(entry)
    new.finish()
    gap = distance(new.machine.model.params, old.model.params)
    return Repair(new.machine.model.version, removed, path.left_out, gap)


class _Path:
    """Walks the new path beside the old one."""

    def __init__(self, old: Machine, new: Run, folder: Path, where: str) -> None:
        self._old = old
        self._where = where
        self._new = new
        self._start = new.machine.model.params
        self._lengths: list[float] = []  # of the updates taken, sorted
        self.left_out = 0
        self._versions = [0]  # old version -> the new one that stands in its place
        self._tickets: dict[int, int] = {}  # old ticket -> new ticket
        self._history = History(  # of recorded updates, on the models they were really computed on
            len(old.model.params), MEMORY, min_curvature=1e-8, strict=True, path=folder, page_bytes=PAGE_BYTES
        )

    def advance_old(self, entry: Entry) -> None:
        repeat(self._old, entry, self._where)
        if entry.event is Event.ARRIVAL:
            self._versions.append(self._new.machine.model.version)

    def follow(self, entry: Entry) -> None:
        """Do on the new path what this entry did on the old one."""
        if entry.event is Event.ISSUED:
            assert entry.base is not None
            assert entry.ticket is not None
            ticket = self._new.issue(entry.client, self._versions[entry.base])
            self._tickets[entry.ticket] = ticket.number
        elif entry.ticket is not None and entry.ticket in self._tickets:
            number = self._tickets.pop(entry.ticket)
            if entry.event is Event.ARRIVAL:
                self._hand_in(entry, number)
            elif entry.event is Event.REFUSED:
                self._new.receive(number, REASONS.get(entry.reason, Reason.MALFORMED))
            else:
                self._new.withdraw(number, entry.event, entry.reason)

    def _hand_in(self, entry: Entry, number: int) -> None:
        """Let this arrival answer its ticket on the new path."""
        if entry.payload is None:  # it was refused, and holds nothing that could be judged
            self._new.receive(number, REASONS.get(entry.reason, Reason.MALFORMED))
            return
        old_base, new_base = _base(self._old, entry.ticket), _base(self._new.machine, number)
        if old_base is None or new_base is None:
            self._new.receive(number, Reason.TOO_STALE)
            return
        client = self._old.enrol(entry.client)
        update = Update(client, old_base, recorded_delta(entry, len(self._start), self._where))
        if update.fault(len(self._start)):
            self._new.receive(number, update.delta)  # to be refused again
        elif self._is_near(update, new_base):
            self._new.receive(number, self._move(update, new_base))
        else:
            self.left_out += 1
            self._new.withdraw(number, Event.LEFT_OUT, "computed on a model far from the repaired path")

    def _is_near(self, update: Update, new_base: Model) -> bool:
        """Whether the paths are closer to each other than the new one is to its start, or but some steps apart."""
        length = norm(update.delta)
        bisect.insort(self._lengths, length)
        step = self._new.machine.settings.server_lr * _median(self._lengths)
        free = distance(new_base.params, self._start) + FREE_STEPS * step
        near = distance(new_base.params, update.base.params) <= free
        if not near:
            del self._lengths[bisect.bisect_left(self._lengths, length)]
        return near

    def _move(self, update: Update, new_base: Model) -> Vector:
        """The recorded update, carried over to the base model of the new path."""
        moved = self._moved(update, new_base)
        self._history.release(update.client)  # memory for one client, however many there are
        return moved

    def _moved(self, update: Update, new_base: Model) -> Vector:
        client = update.client
        self._history.remember(client, update.delta, update.base.params)
        correction = self._history.correction(client, new_base.params)
        weights, moments = correction.weights[0], correction.moments[0]
        length = float(np.sqrt(max(0.0, weights @ moments @ weights)))
        limit = MAX_CORRECTION * float(np.sqrt(moments[DELTA, DELTA]))
        if not np.isfinite(length):
            return update.delta
        if length > limit:
            weights = weights * (limit / length)
        weights = weights.copy()
        weights[DELTA] += 1.0
        return self._history.estimate(client, weights, new_base.params)


def _base(machine: Machine, number: int | None) -> Model | None:
    """The model behind an open ticket; None if it was dropped because it is too old."""
    ticket = machine.ticket(number) if number is not None else None
    assert ticket is not None
    return machine.model_of(ticket) if ticket.version in machine.held_versions else None


def _median(values: Sequence[float]) -> float:
    """The median of sorted numbers."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
