"""Who answers next, and for which model: the paper's random protocol, and one in virtual time.

Both only issue and pick tickets of a server; what is sent is not their business. No draw depends on the defense
or the attack, so runs that differ only in those see the same arrivals. The exception is an attack whose clients answer
in haste: its arrivals come beside those of the others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field

from secureafl.errors import SecureAFLError, SettingsError
from secureafl.lab.streams import stream
from secureafl.server import Ticket
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, StateDict, Vector, Verdict

DRAWN_AT_ONCE = 1024
"""Rounds whose draws the paper's protocol makes together."""


class Server(Protocol):
    """What a protocol needs of the machine: the machine itself, or someone who writes down what it is asked."""

    @property
    def model(self) -> Model: ...
    def ticket(self, number: int) -> Ticket | None: ...
    def issue(self, client: ClientId, version: int | None = None) -> Ticket: ...
    def withdraw(self, number: int) -> None: ...
    def receive(self, number: int, delta: Vector) -> Verdict: ...


class Haste(NamedTuple):
    """Clients that answer sooner than others do: each job takes them `duration` of the usual client's time."""

    clients: frozenset[ClientId]
    duration: float


class ArrivalProtocol(Protocol):
    """Decides which open ticket is answered next."""

    @property
    def keep_recent(self) -> int:
        """Past versions the machine must keep for this protocol."""

    def next(self, server: Server) -> Ticket:
        """The ticket whose update arrives now."""

    def state_dict(self) -> StateDict:
        """All that is needed to go on, bit for bit."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` of an equally configured protocol returned."""


class PaperProtocol:
    """Each round a uniformly drawn client answers for a version drawn uniformly from the last `max_delay` + 1.

    Its draws depend on the seed and the round alone, so there is no state to save. They are made in blocks, because
    opening a stream takes longer than drawing from it.

    Whose jobs take a share h of the usual time answers 1 / h times as often as others do, and for versions h times as
    old. Such arrivals take the place of some, drawn by lot; the others stay who and what they were.
    """

    def __init__(self, num_clients: int, max_delay: int, seed: int, haste: Haste | None = None) -> None:
        self._num_clients = num_clients
        self._max_delay = max_delay
        self._seed = seed
        self._hasty = sorted(haste.clients) if haste is not None else []
        self._duration = haste.duration if haste is not None else 1.0
        self._share_replaced = _share_replaced(len(self._hasty), num_clients, self._duration)
        self._block = -1
        self._clients: list[int] = []
        self._delays: list[float] = []

    @property
    def keep_recent(self) -> int:
        return self._max_delay

    def next(self, server: Server) -> Ticket:
        present = server.model.version
        block, place = divmod(present, DRAWN_AT_ONCE)
        if block != self._block:
            self._block = block
            self._clients = stream(self._seed, "select", block).integers(self._num_clients, size=DRAWN_AT_ONCE).tolist()
            self._delays = stream(self._seed, "delay", block).random(DRAWN_AT_ONCE).tolist()
            if self._hasty:
                self._hurry(block)
        num_versions = min(present, self._max_delay) + 1
        return server.issue(ClientId(self._clients[place]), present - int(self._delays[place] * num_versions))

    def _hurry(self, block: int) -> None:
        """Put arrivals of the hasty in the place of some, and shorten the delays of all of theirs."""
        lots = stream(self._seed, "haste", block)
        replaced = lots.random(DRAWN_AT_ONCE) < self._share_replaced
        chosen = lots.integers(len(self._hasty), size=DRAWN_AT_ONCE)
        for place in range(DRAWN_AT_ONCE):
            if replaced[place]:
                self._clients[place] = self._hasty[chosen[place]]
            if self._clients[place] in self._hasty:
                self._delays[place] *= self._duration

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""


def _share_replaced(num_hasty: int, num_clients: int, duration: float) -> float:
    """Share of evenly drawn arrivals to give to the hasty, so that each answers 1 / duration times as often as others.

    Of k hasty among n:  k / h : (n - k) shall be s + (1 - s) k / n : (1 - s) (n - k) / n.
    """
    if not 0.0 < duration <= 1.0:
        raise SettingsError(f"duration = {duration}: above 0, and 1 at most, which is the usual client's")
    extra = num_hasty * (1.0 / duration - 1.0)
    return extra / (num_clients + extra)


class VirtualTimeSettings(Settings):
    """How fast clients are, and how reliable. Times are in units of the average client's job."""

    speed: Literal["constant", "uniform", "lognormal", "pareto"] = "lognormal"
    """Distribution of the clients' average job durations; its mean is 1."""
    uniform_width: float = Field(0.5, ge=0.0, lt=1.0)
    """`uniform`: durations between 1 - width and 1 + width."""
    lognormal_sigma: float = Field(0.5, ge=0.0)
    """`lognormal`: standard deviation of the logarithm."""
    pareto_shape: float = Field(2.5, gt=1.0)
    """`pareto`: the tail's exponent; the smaller, the slower the slowest."""
    jitter: float = Field(0.1, ge=0.0)
    """How much a client's own jobs differ: standard deviation of the logarithm of a factor with mean 1."""
    straggler_fraction: float = Field(0.0, ge=0.0, le=1.0)
    """Share of clients that are slower still."""
    straggler_factor: float = Field(10.0, ge=1.0)
    """How many times slower those are."""
    dropout_rate: float = Field(0.0, ge=0.0, lt=1.0)
    """Chance that a client vanishes during a job: no update comes, and it asks for a new model later."""
    dropout_absence: float = Field(10.0, gt=0.0)
    """Average time until a vanished client returns."""
    late_fraction: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of clients that are not there at the start."""
    late_until: float = Field(100.0, gt=0.0)
    """Late clients join at a time drawn uniformly from 0 to this."""


class _Event(NamedTuple):
    """Something due at `time`; `number` orders events that fall together."""

    time: float
    number: int
    client: int
    kind: int
    ticket: int


COMES, ANSWERS, VANISHES = 0, 1, 2
NOBODY = -1


class VirtualTimeProtocol:
    """Every client works at its own pace on the model that stood when it asked; the earliest to finish answers next.

    A client that has answered asks again at once. The clock is virtual: nothing waits.
    """

    def __init__(self, num_clients: int, settings: VirtualTimeSettings, seed: int, haste: Haste | None = None) -> None:
        self._settings = settings
        self._seed = seed
        self._now = 0.0
        self._num_events = 0
        self._idle = NOBODY  # who answered last and has not been given a new model yet
        self._num_jobs = [0] * num_clients
        self._events: list[_Event] = []
        self.durations = draw_durations(num_clients, settings, seed)
        if haste is not None:
            for hasty in haste.clients:
                self.durations[hasty] = haste.duration
        joins = stream(seed, "late")
        late = set(joins.permutation(num_clients)[: round(settings.late_fraction * num_clients)].tolist())
        for client in range(num_clients):
            at = float(joins.uniform(0.0, settings.late_until))
            self._schedule(at if client in late else 0.0, client, COMES)

    @property
    def keep_recent(self) -> int:
        return 0

    @property
    def now(self) -> float:
        """The virtual clock."""
        return self._now

    def next(self, server: Server) -> Ticket:
        if self._idle != NOBODY:
            self._dispatch(self._idle, server)
            self._idle = NOBODY
        while True:
            event = heapq.heappop(self._events)
            self._now = event.time
            if event.kind == ANSWERS:
                self._idle = event.client
                return _open_ticket(server, event.ticket)
            if event.kind == COMES:
                self._dispatch(event.client, server)
            else:
                server.withdraw(event.ticket)
                absence = stream(self._seed, f"absence/{event.client}", self._num_jobs[event.client])
                back = self._now + float(absence.exponential(self._settings.dropout_absence))
                self._schedule(back, event.client, COMES)

    def state_dict(self) -> StateDict:
        return {
            "now": np.array(self._now, np.float64),
            "counts": np.array([self._num_events, self._idle], np.int64),
            "num_jobs": np.array(self._num_jobs, np.int64),
            "times": np.array([event.time for event in self._events], np.float64),
            "events": np.array([event[1:] for event in self._events], np.int64).reshape(-1, 4),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._now = float(np.asarray(state["now"], np.float64))
        self._num_events, self._idle = np.asarray(state["counts"]).tolist()
        self._num_jobs = np.asarray(state["num_jobs"]).tolist()
        times, rows = np.asarray(state["times"]).tolist(), np.asarray(state["events"]).tolist()
        self._events = [_Event(time, *row) for time, row in zip(times, rows, strict=True)]
        heapq.heapify(self._events)

    def _dispatch(self, client: int, server: Server) -> None:
        """Give the client the present model; it will answer, or vanish on the way."""
        ticket = server.issue(ClientId(client))
        job = stream(self._seed, f"job/{client}", self._num_jobs[client])
        self._num_jobs[client] += 1
        sigma = self._settings.jitter
        duration = self.durations[client] * math.exp(sigma * float(job.standard_normal()) - sigma**2 / 2)
        if float(job.random()) < self._settings.dropout_rate:
            self._schedule(self._now + float(job.random()) * duration, client, VANISHES, ticket.number)
        else:
            self._schedule(self._now + duration, client, ANSWERS, ticket.number)

    def _schedule(self, time: float, client: int, kind: int, ticket: int = NOBODY) -> None:
        heapq.heappush(self._events, _Event(time, self._num_events, client, kind, ticket))
        self._num_events += 1


def draw_durations(num_clients: int, settings: VirtualTimeSettings, seed: int) -> list[float]:
    """Each client's average job duration; the distribution's mean is 1 before stragglers are slowed down."""
    rng = stream(seed, "speed")
    if settings.speed == "uniform":
        drawn = rng.uniform(1.0 - settings.uniform_width, 1.0 + settings.uniform_width, num_clients)
    elif settings.speed == "lognormal":
        sigma = settings.lognormal_sigma
        drawn = np.exp(sigma * rng.standard_normal(num_clients) - sigma**2 / 2)
    elif settings.speed == "pareto":
        shape = settings.pareto_shape
        drawn = (1.0 + rng.pareto(shape, num_clients)) * (shape - 1.0) / shape
    else:
        drawn = np.ones(num_clients)
    stragglers = rng.permutation(num_clients)[: round(settings.straggler_fraction * num_clients)]
    drawn[stragglers] *= settings.straggler_factor
    return [float(value) for value in drawn]


def _open_ticket(server: Server, number: int) -> Ticket:
    ticket = server.ticket(number)
    if ticket is None:
        raise SecureAFLError(f"ticket {number} is not open; protocol and machine do not belong together")
    return ticket
