"""What if? Judge a recorded run again under another defense or other settings, from its journal alone.

Both machines take the same recorded updates in the same order: one repeats the run as it was, the other judges anew. A
client's update is what it sent then; under another course of the model it might have sent something else, which no
journal can know. So a replay says exactly who would have been rejected for what they did send, and only roughly where
the model would have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from secureafl.defenses.base import distance
from secureafl.server.machine import Machine
from secureafl.server.record.entries import Event
from secureafl.server.record.run import repeat
from secureafl.server.review.opened import RecordedRun
from secureafl.types import Vector


@dataclass(frozen=True, slots=True)
class Judgement:
    """One arrival, judged twice."""

    version: int
    client: str
    then: str
    now: str
    accepted_then: bool
    accepted_now: bool
    distance: float
    """Between the two models after it, Euclidean."""


@dataclass(slots=True)
class Comparison:
    """A whole run, judged twice."""

    num_arrivals: int = 0
    accepted_then: Counter[str] = field(default_factory=Counter)
    accepted_now: Counter[str] = field(default_factory=Counter)
    arrivals: Counter[str] = field(default_factory=Counter)
    changed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(reason then, reason now) -> how often, where the two differ."""
    distances: list[float] = field(default_factory=list)
    scores: list[tuple[int, Mapping[str, float], Mapping[str, float]]] = field(default_factory=list)
    """(version, metrics then, metrics now), where an evaluation was asked for."""


def replay(run: RecordedRun, now: Machine, then: Machine | None = None) -> Iterator[Judgement]:
    """Every arrival of the run under the machine `now`; `then` repeats the run as it was."""
    run.require_updates("replay")
    then = then or run.machine()
    for entry in run.journal.entries(payloads=True):
        before = repeat(then, entry, str(run.place))
        after = repeat(now, entry, str(run.place), check=False)
        if entry.event is Event.ARRIVAL and before is not None and after is not None:
            yield Judgement(
                entry.version,
                entry.client,
                str(before.reason),
                str(after.reason),
                before.accepted,
                after.accepted,
                distance(now.model.params, then.model.params),
            )


def compare(
    run: RecordedRun,
    now: Machine,
    *,
    evaluate: Callable[[Vector], Mapping[str, float]] | None = None,
    evaluate_every: int = 100,
) -> Comparison:
    """The run as it was beside the run as `now` judges it; with `evaluate`, both models' scores on the way."""
    then, found = run.machine(), Comparison()
    for judgement in replay(run, now, then):
        found.num_arrivals += 1
        found.arrivals[judgement.client] += 1
        found.accepted_then[judgement.client] += judgement.accepted_then
        found.accepted_now[judgement.client] += judgement.accepted_now
        if judgement.then != judgement.now:
            found.changed[judgement.then, judgement.now] += 1
        found.distances.append(judgement.distance)
        if evaluate is not None and found.num_arrivals % evaluate_every == 0:
            found.scores.append((found.num_arrivals, evaluate(then.model.params), evaluate(now.model.params)))
    return found
