"""Take clients out of a finished run, after the fact: rebuild the model as if they had never answered.

The run is repeated from its first model without the ejected clients, from the journal alone; nobody is asked for
anything. The others' recorded answers were computed on models that the ejected ones had a hand in, so each is moved to
the model that stands in its place on the new path by the client's own curvature:

    answer' = answer + B (new base - old base),   B by L-BFGS from that client's recorded answers, and bounded

An answer computed on a model much further from the new path than that path has come from its start says nothing about
it and is left out. If the ejected clients wrecked the model early, that is most of them, and no journal can bring back
what nobody computed: the repaired run is then little more than its beginning, to be resumed.

This is the idea of FedRecover (X. Cao et al., S&P 2023) in the asynchronous setting. What comes out is a new run of its
own, with a journal, that can be resumed.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from secureafl.defenses.base import distance, norm
from secureafl.errors import SettingsError
from secureafl.history import History
from secureafl.server.journal import Entry, Event
from secureafl.server.machine import Machine
from secureafl.server.recorded import RecordedRun
from secureafl.server.run import Run, StoreSettings, repeat
from secureafl.storage import DELTA
from secureafl.types import ClientId, Vector

MEMORY = 3
MAX_CORRECTION = 1.0  # in lengths of the recorded answer
FREE_STEPS = 10  # so many usual steps may lie between the two paths in any case


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


def eject(run: RecordedRun, clients: Collection[str], run_dir: Path, *, machine: Machine | None = None) -> Repair:
    """Rebuild the run without these clients in `run_dir`. `machine` takes the place of one like the run's own."""
    known = {entry.client for entry in run.journal.entries(Event.ISSUED)}
    if strangers := sorted(set(clients) - known):
        raise SettingsError(f"{run.path} knows no client {', '.join(strangers)}; it has {', '.join(sorted(known))}")
    old = run.machine()
    facts = {name: value for name, value in run.facts.items() if name != "first model"}
    new = Run(machine or run.machine(), StoreSettings(run_dir=run_dir), facts=facts)
    path = _Path(old, new)
    removed = 0
    for entry in run.journal.entries(payloads=True):
        if entry.client not in clients:
            path.follow(entry)
        elif entry.event is Event.ARRIVAL:
            removed += 1
        path.advance_old(entry, str(run.path))
    new.finish()
    gap = distance(new.machine.model.params, old.model.params)
    kept = new.machine.model.version
    new.close()
    return Repair(kept, removed, path.left_out, gap)


class _Path:
    """Walks the new path beside the old one."""

    def __init__(self, old: Machine, new: Run) -> None:
        self._old = old
        self._new = new
        self._start = new.machine.model.params
        self._lengths: list[float] = []  # of the answers taken
        self.left_out = 0
        self._versions = [0]  # old version -> the new one that stands in its place
        self._tickets: dict[int, int] = {}  # old ticket -> new ticket
        self._history = History(
            len(old.model.params), MEMORY, min_curvature=1e-8, strict=True
        )  # of recorded answers, on the models they were really computed on

    def advance_old(self, entry: Entry, where: str) -> None:
        repeat(self._old, entry, where)
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
            if entry.event is not Event.ARRIVAL:
                self._new.withdraw(number, entry.event, entry.reason)
            elif entry.payload is not None:
                answer = self._move(entry, number)
                if answer is None:
                    self.left_out += 1
                    self._new.withdraw(number, Event.LEFT_OUT, "computed on a model far from the repaired path")
                else:
                    self._new.receive(number, answer)

    def _is_near(self, answer: Vector, old_base: Vector, new_base: Vector) -> bool:
        """Whether the paths are closer to each other than the new one is to its start, or but some steps apart."""
        self._lengths.append(norm(answer))
        step = self._new.machine.settings.server_lr * statistics.median(self._lengths)
        near = distance(new_base, old_base) <= distance(new_base, self._start) + FREE_STEPS * step
        if not near:
            self._lengths.pop()
        return near

    def _move(self, entry: Entry, number: int) -> Vector | None:
        """The recorded answer, carried over to the base model of the new path; None if it comes from too far."""
        answer = np.frombuffer(entry.payload or b"", np.float32).copy()
        old_ticket, new_ticket = self._old.ticket(entry.ticket or 0), self._new.machine.ticket(number)
        assert old_ticket is not None
        assert new_ticket is not None
        client = ClientId(old_ticket.client)
        old_base, new_base = self._old.model_of(old_ticket).params, self._new.machine.model_of(new_ticket).params
        if not np.isfinite(answer).all() or not self._is_near(answer, old_base, new_base):
            return None
        self._history.remember(client, answer, old_base)
        correction = self._history.correction(client, new_base)
        weights, moments = correction.weights[0], correction.moments[0]
        length = float(np.sqrt(max(0.0, weights @ moments @ weights)))
        limit = MAX_CORRECTION * float(np.sqrt(moments[DELTA, DELTA]))
        if not np.isfinite(length):
            return answer
        if length > limit:
            weights = weights * (limit / length)
        weights = weights.copy()
        weights[DELTA] += 1.0
        return self._history.estimate(client, weights, new_base)
