"""An engine on a virtual clock, with clients of every kind: prompt, slow, dead, late, malicious, and broken ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from tests.simulation.disk import FaultyDisk
from tests.support import Quadratic

from secureafl.engines.sessions import LostError
from secureafl.server import Assignment, Federation
from secureafl.server.record.entries import Event
from secureafl.types import Reason, Vector

TTL_SECONDS = 20.0
UNFIT_NAMES = ("x" * 201, "", "\ud800")


class Clock:
    """Time that passes when the simulation says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """A model on its way: when it was sent, and when the update is there."""

    assignment: Assignment
    due: float


class SimulatedCarrier:
    """One engine. Its clients' kinds decide what they do; all else is drawn from `rng`."""

    def __init__(
        self,
        kinds: dict[str, str],
        problem: Quadratic,
        clock: Clock,
        disk: FaultyDisk,
        rng: np.random.Generator,
        on_send: Callable[[Assignment], None],
    ) -> None:
        self.federation: Federation | None = None
        self.happened: Counter[str] = Counter()
        self._kinds = kinds
        self._places = {client: place for place, client in enumerate(kinds)}
        self._problem = problem
        self._clock = clock
        self._disk = disk
        self._rng = rng
        self._on_send = on_send
        self._late: list[Dispatch] = []
        self._away: dict[str, float] = {}  # client -> not there before

    def present(self) -> Collection[str]:
        self._disk.alive()
        self._send_late_updates()
        if self._rng.random() < 0.05:
            self._happens("look fails")
            raise self._any_error()
        strangers = []
        if self._rng.random() < 0.02:
            self._happens("unfit name")
            strangers = [str(self._rng.choice(UNFIT_NAMES))]
        return strangers + [client for client in self._kinds if self._away.get(client, 0.0) <= self._clock()]

    def send(self, assignment: Assignment) -> Dispatch:
        self._disk.alive()
        self._on_send(assignment)
        kind = self._kinds[assignment.client]
        if kind == "erratic" and self._rng.random() < 0.3:
            self._happens("send fails")
            raise self._any_error()
        if kind == "leaving" and self._rng.random() < 0.3:
            self._leave(assignment.client)
        low, high = {"slow": (5.0, 15.0), "dead": (1e9, 1e9), "late": (15.0, 40.0)}.get(kind, (0.1, 2.0))
        return Dispatch(assignment, self._clock() + float(self._rng.uniform(low, high)))

    def fetch(self, handle: Dispatch, assignment: Assignment) -> Vector | Reason | None:
        self._disk.alive()
        kind, client = self._kinds[assignment.client], assignment.client
        if kind == "leaving" and self._rng.random() < 0.1:
            self._leave(client)
        if kind == "erratic" and self._rng.random() < 0.2:
            self._happens("fetch fails")
            raise self._any_error()
        if self._clock() < handle.due:
            if kind == "late" and handle not in self._late:
                self._late.append(handle)
            return None
        if kind == "crashing" and self._rng.random() < 0.5:
            self._happens("client fails")
            raise LostError(Event.CLIENT_ERROR, "Traceback\n  boom \x1b[31m \x00")
        if kind == "garbage":
            self._happens("garbage")
            return self._garbage()
        if kind == "forging":
            self._forge(assignment)
        if kind == "flooding":
            self._flood(assignment)
        return self._update(assignment)

    def close(self) -> None:
        self._late.clear()

    def _update(self, assignment: Assignment) -> Vector:
        gradient = self._problem.noisy_gradient(self._places[assignment.client], assignment.params, self._rng)
        return -gradient if self._kinds[assignment.client] == "malicious" else gradient

    def _leave(self, client: str) -> None:
        self._happens("client leaves")
        self._away[client] = self._clock() + float(self._rng.uniform(1.0, 30.0))
        raise LostError(Event.LEFT, "gone")

    def _garbage(self) -> Vector | Reason:
        dim = self._problem.dim
        options: list[object] = [
            Reason.MALFORMED,
            Reason.BAD_SIGNATURE,
            np.full(dim, np.nan, np.float32),
            np.full(dim, 1e30, np.float32),
            np.zeros(dim + 1, np.float32),
            np.zeros((dim, 1), np.float32),
            np.zeros(dim, np.float64),
            np.zeros(0, np.float32),
            np.full(dim, 1e17, np.float32),  # allowed: a defense has to judge it
        ]
        return options[int(self._rng.integers(len(options)))]  # type: ignore[return-value]

    def _forge(self, own: Assignment) -> None:
        """Updates for tickets of others, answered ones, and ones that never were."""
        self._happens("forged")
        number = int(self._rng.integers(-2, own.ticket + 5))
        self._deliver(replace(own, ticket=number), self._update(own))

    def _flood(self, own: Assignment) -> None:
        for _ in range(int(self._rng.integers(1, 6))):
            self._happens("sent twice")
            self._deliver(own, self._update(own))

    def _send_late_updates(self) -> None:
        """What comes after its ticket has expired."""
        ready = [dispatch for dispatch in self._late if dispatch.due <= self._clock()]
        self._late = [dispatch for dispatch in self._late if dispatch.due > self._clock()]
        for dispatch in ready:
            self._happens("late")
            self._deliver(dispatch.assignment, self._update(dispatch.assignment))

    def _deliver(self, assignment: Assignment, update: Vector) -> None:
        assert self.federation is not None
        self.federation.deliver(assignment, update)

    def _any_error(self) -> Exception:
        options: list[Exception] = [
            RuntimeError("engine\nbroken"),
            ConnectionError("no link"),
            OSError(28, "No space left on the engine"),
            KeyError("x"),
            ValueError("\udc80 not text"),
            StopIteration(),
            LostError(Event.CLIENT_ERROR, "\ud800"),
        ]
        return options[int(self._rng.integers(len(options)))]

    def _happens(self, what: str) -> None:
        self.happened[what] += 1


KINDS = (
    "fast",
    "slow",
    "dead",
    "late",
    "malicious",
    "forging",
    "flooding",
    "garbage",
    "crashing",
    "leaving",
    "erratic",
)
