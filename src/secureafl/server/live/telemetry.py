"""The figures of a server: one place that hears everything, read by all who report.

The run says what it writes down and how long things took, the federation where it stands, the evaluator what came out.
Readers take a `Reading` when they like: the Prometheus exporter at a scrape, a sink now and then, the line of progress.
A reading waits for no step, and no step waits for a reader.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from secureafl.defenses import Defense
from secureafl.defenses.base import ExcludesClients
from secureafl.server.live.evaluation import Evaluation
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.observer import Timed
from secureafl.types import UNJUDGED, Reason

RECENT = 100  # arrivals that the recent staleness and rate look back on

VERSIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Histogram:
    """How often values fell up to each bound, and how much they were in all."""

    bounds: tuple[float, ...]
    counts: list[int]
    """One per bound, and one for what lies beyond the last."""
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        """Count one more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """As it is now."""
        return Histogram(self.bounds, self.counts.copy(), self.total)

    def mean_since(self, before: Histogram) -> float | None:
        """The mean of what came after `before`; None if nothing did."""
        count = self.count - before.count
        return (self.total - before.total) / count if count else None


@dataclass(frozen=True, slots=True)
class Standing:
    """What only the federation itself can say, counted now and then."""

    known: int = 0
    quarantined: int = 0
    excluded: int | None = None
    """Known clients without a vote; None where the defense knows no such thing."""
    tickets_open: int = 0
    updates_waiting: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """All figures at one moment. Counts are those of the journal's rows, those before a restart included."""

    seconds: float
    """Of the run, when this was read."""
    version: int
    arrivals: Mapping[tuple[str, str], int]
    """(verdict, reason) -> how often; a verdict is accepted, rejected, or refused without being judged."""
    events: Mapping[Event, int]
    """Every kind of row but arrivals and refusals."""
    present: int
    """Clients that joined and did not leave."""
    staleness: Histogram
    times: Mapping[Timed, Histogram]
    lipschitz_factor: float | None
    threshold: float | None
    seconds_since_arrival: float
    recent: tuple[tuple[float, float], ...]
    """(seconds, staleness) of the last arrivals."""
    standing: Standing
    latest: Evaluation | None

    def num_arrivals(self, verdict: str | None = None) -> int:
        return sum(count for (given, _), count in self.arrivals.items() if verdict in {None, given})

    @property
    def recent_staleness(self) -> float:
        return sum(staleness for _, staleness in self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def recent_rate(self) -> float:
        """Arrivals per second, lately."""
        span = self.recent[-1][0] - self.recent[0][0] if len(self.recent) > 1 else 0.0
        return (len(self.recent) - 1) / span if span > 0.0 else 0.0


def verdict_of(reason: str, accepted: bool) -> str:
    """Accepted, not accepted, or not even a thing that could be judged."""
    return "accepted" if accepted else "refused" if reason in UNJUDGED else "rejected"


def num_excluded(defense: Defense) -> int | None:
    """Known clients without a vote, where the defense gives votes."""
    return len(defense.excluded()) if isinstance(defense, ExcludesClients) else None


_NEVER_ARRIVE = {Reason.UNSOLICITED, Reason.TICKET_CLOSED}
_ANSWERS = {Event.ARRIVAL, Event.REFUSED}
_GOOD = {Reason.ACCEPTED, Reason.FIRST_CONTACT, Reason.BUFFERED, Reason.OVER_BUDGET}


class Telemetry:
    """Adds up what it hears; safe to feed and to read from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives the seconds of the run."""
        self._clock = clock
        self._lock = threading.Lock()
        # Known words begin at zero, so that the first of its kind is an increase and not a new series.
        known = (reason for reason in Reason if reason not in _NEVER_ARRIVE)
        self._arrivals = Counter({(verdict_of(reason, reason in _GOOD), str(reason)): 0 for reason in known})
        self._events: Counter[Event] = Counter(dict.fromkeys((event for event in Event if event not in _ANSWERS), 0))
        self._present: set[str] = set()
        self._version = 0
        self._staleness = Histogram.empty(VERSIONS)
        self._times: dict[Timed, Histogram] = {
            what: Histogram.empty(SECONDS) for what in ("step", "journal", "snapshot")
        }
        self._factor: float | None = None
        self._threshold: float | None = None
        self._last_arrival = clock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._standing = Standing()
        self._evaluations: list[Evaluation] = []

    def row(self, entry: Entry) -> None:
        """Count a row of the journal."""
        with self._lock:
            if entry.event is Event.ARRIVAL:
                self._arrive(entry)
                return
            if entry.event is Event.REFUSED:
                self._arrivals["refused", entry.reason] += 1
                return
            self._events[entry.event] += 1
            self._version = entry.version
            if entry.event in {Event.JOINED, Event.RETURNED}:
                self._present.add(entry.client)
            elif entry.event in {Event.LEFT, Event.QUARANTINED}:
                self._present.discard(entry.client)
            elif entry.event is Event.RESUMED:  # whoever is still there joins anew
                self._present.clear()

    def took(self, what: Timed, seconds: float) -> None:
        """Count a duration."""
        with self._lock:
            self._times[what].add(seconds)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep what an evaluation brought."""
        with self._lock:
            self._evaluations.append(evaluation)

    def stand(self, standing: Standing) -> None:
        """Take over where the federation stands."""
        with self._lock:
            self._standing = standing

    def evaluations(self, after: int = 0) -> list[Evaluation]:
        """All evaluations but the first `after` ones."""
        with self._lock:
            return self._evaluations[after:]

    def read(self) -> Reading:
        """All figures as they are now."""
        seconds = self._clock()
        with self._lock:
            return Reading(
                seconds=seconds,
                version=self._version,
                arrivals=dict(self._arrivals),
                events=dict(self._events),
                present=len(self._present),
                staleness=self._staleness.copy(),
                times={what: times.copy() for what, times in self._times.items()},
                lipschitz_factor=self._factor,
                threshold=self._threshold,
                seconds_since_arrival=max(0.0, seconds - self._last_arrival),
                recent=tuple(self._recent),
                standing=self._standing,
                latest=self._evaluations[-1] if self._evaluations else None,
            )

    def _arrive(self, entry: Entry) -> None:
        staleness = float(entry.version - entry.base) if entry.base is not None else 0.0
        self._arrivals[verdict_of(entry.reason, bool(entry.accepted)), entry.reason] += 1
        self._version = entry.version + 1
        self._staleness.add(staleness)
        if "lipschitz_factor" in entry.evidence:
            self._factor = entry.evidence["lipschitz_factor"]
            self._threshold = entry.evidence.get("threshold")
        self._last_arrival = entry.seconds
        self._recent.append((entry.seconds, staleness))
