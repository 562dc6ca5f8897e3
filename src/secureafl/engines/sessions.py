"""Clients, each a small session: hand out the model, wait for the update, hand it in, hand out the next one.

What carries models and updates is a `Carrier`, one per engine. A bounded pool of workers serves any number of sessions,
so a client that stalls blocks one worker and no other client. Clients that appear later are taken in, vanished ones
forgotten until they return, failing ones tried again after longer and longer waits. An engine may fail as it likes; a
failure of the server itself, its journal above all, ends the run.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.schedule import Schedule
from secureafl.errors import StoreError
from secureafl.server import Assignment, Federation
from secureafl.server.live.federation import describe
from secureafl.server.record.entries import Event
from secureafl.text import name_fault
from secureafl.types import Verdict
from secureafl.wire import Reply

CLOSE_SECONDS = 5.0
STALLED_AFTER = 4.0  # times as long as is usual
NUM_WAITS = 101

Handle = TypeVar("Handle")
"""What an engine knows a dispatch by."""


class LostError(Exception):
    """No update will come. With `Event.LEFT` the client is gone; with any other event it is tried again later."""

    def __init__(self, event: Event, reason: str) -> None:
        super().__init__(reason)
        self.event = event
        self.reason = reason


Report: TypeAlias = Callable[[str, Mapping[str, float]], None]
"""Where a carrier tells what a client said of itself, by name, before it hands over the update that came with it."""


class Carrier(Protocol[Handle]):
    """An engine as sessions see it. Every method may be called from any thread."""

    def present(self) -> Collection[str]:
        """The clients that can be reached now."""

    def send(self, assignment: Assignment) -> Handle:
        """Hand a model out; raises `LostError` if the client cannot be reached."""

    def fetch(self, handle: Handle, assignment: Assignment) -> Reply | None:
        """The update, None if it is not there yet, or `LostError`. May block: it then takes up one worker."""

    def close(self) -> None:
        """The run is over: a `fetch` that blocks returns or raises at once."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How an engine is served."""

    min_clients: int
    """Wait for so many before anyone gets the model."""
    num_workers: int
    """Threads that talk to the engine; with 0, whoever calls `advance` does."""
    poll_seconds: float = 0.0
    """First wait before asking for an update; later waits are a tenth of the time already waited."""
    max_poll_seconds: float = 0.0
    """Longest wait between two such questions."""


@dataclass(eq=False)
class Session(Generic[Handle]):
    """What is going on with one client. Only one worker at a time holds it."""

    client: str
    assignment: Assignment | None = None
    handle: Handle | None = None
    sent_at: float = 0.0
    update: Reply | None = None  # fetched, but held back for a drawn time
    num_failures: int = 0
    resting: bool = False  # waits before another try, without a place in flight
    stalled: bool = False  # its place in flight is another's, because its update does not come


class SessionPool(Generic[Handle]):
    """Keeps every reachable client busy until the federation stops."""

    def __init__(
        self,
        carrier: Carrier[Handle],
        federation: Federation,
        settings: EngineSettings,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carrier = carrier
        self._federation = federation
        self._settings = settings
        self._pace = pace
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session[Handle]] = {}
        self._left: dict[str, tuple[float, int]] = {}  # client -> (not before, failures so far)
        self._waiting: deque[Session[Handle]] = deque()  # clients whose turn has not come, with max_in_flight
        self._num_in_flight = 0
        self._num_stalled = 0
        self._waits: deque[float] = deque(maxlen=NUM_WAITS)  # how long the last updates took
        self._nameless: set[int] = set()  # hashes of names that nobody can take part under
        self._begun = False  # whether enough clients were here
        self._closed = threading.Event()
        self._speeds: dict[str, np.random.Generator] = {}
        self._schedule: Schedule[Session[Handle]] = Schedule(
            self._advance, self._on_trouble, self._on_death, num_workers=pace.num_workers, clock=clock
        )
        self._next_discovery = clock()
        self._discovery: threading.Thread | None = None
        if pace.num_workers > 0:
            self._discovery = threading.Thread(target=self._keep_discovering, daemon=True)
            self._discovery.start()

    def advance(self) -> float:
        """Without workers: do all that is due now, on the caller's thread. Returns when there is more to do."""
        if self._clock() >= self._next_discovery:
            self._next_discovery = self._clock() + self._settings.discovery_seconds
            try:
                self._discover()
            except BaseException as error:
                self._on_death(error)
        self._schedule.serve_due()
        due = self._schedule.next_due()
        return self._next_discovery if due is None else min(due, self._next_discovery)

    def close(self) -> None:
        """Leave all clients alone."""
        self._closed.set()
        self._carrier.close()
        self._schedule.close(CLOSE_SECONDS)
        if self._discovery is not None:
            self._discovery.join(CLOSE_SECONDS)

    def _keep_discovering(self) -> None:
        try:
            while not self._closed.is_set():
                self._discover()
                self._closed.wait(self._settings.discovery_seconds)
        except BaseException as error:
            self._on_death(error)

    def _discover(self) -> None:
        """Look for clients that joined or came back; begin once there are enough."""
        try:
            present = set(self._carrier.present())
        except Exception as error:  # the engine's trouble must not end the run
            self._federation.note("", Event.ENGINE_TROUBLE, describe(error))
            present = set()
        unknown = present - self._sessions.keys()  # idle clients that are known cost no more than this
        nameless = {client for client in unknown if not self._has_name(client)}
        present -= nameless
        self._begun = self._begun or len(present) >= self._pace.min_clients
        if self._begun:
            self._take_in(sorted(unknown - nameless))
        self._stop_if_none_is_left(present)

    def _stop_if_none_is_left(self, present: Collection[str]) -> None:
        """End the run if everyone is quarantined: nobody would ever be asked again."""
        enough = len(present) >= max(1, self._pace.min_clients)
        if enough and not self._federation.stopped and all(map(self._federation.quarantined, present)):
            reason = f"all {len(present)} are quarantined: the model may have diverged, see their refused updates"
            self._federation.note("", Event.NO_CLIENTS, reason)
            self._federation.stop()

    def _has_name(self, client: str) -> bool:
        """Whether the name fits into the record; one that does not is a row, once."""
        fault = name_fault(client)
        if fault is not None and hash(client) not in self._nameless:
            self._nameless.add(hash(client))
            self._federation.note("", Event.ENGINE_TROUBLE, fault)
        return fault is None

    def _on_death(self, error: BaseException) -> None:
        """A thread that serves clients ends: so does the run."""
        if not self._closed.is_set():
            self._federation.fail(error)

    def _take_in(self, clients: Sequence[str]) -> None:
        """Welcome these clients, all before the first of them begins: whoever is quick must not go twice before the
        last has had a turn.
        """
        welcomed = []
        for client in clients:
            not_before, num_failures = self._left.get(client, (0.0, 0))
            if self._clock() < not_before or self._federation.quarantined(client):
                continue
            session: Session[Handle] = Session(client, num_failures=num_failures)
            with self._lock:
                self._sessions[client] = session
            self._federation.note(client, Event.RETURNED if client in self._left else Event.JOINED)
            welcomed.append(session)
        self._start_or_queue(*welcomed)

    def _start_or_queue(self, *sessions: Session[Handle]) -> None:
        limit = self._settings.max_in_flight
        with self._lock:
            num_places = len(sessions) if limit is None else max(0, limit - self._num_in_flight)
            starting = sessions[:num_places]
            self._num_in_flight += len(starting)
            self._waiting.extend(sessions[num_places:])
        for session in starting:
            self._schedule.put(session)

    def _leave_place(self) -> None:
        """Let another client have a place in flight."""
        with self._lock:
            self._num_in_flight -= 1
            following = self._waiting.popleft() if self._waiting else None
            if following is not None:
                self._num_in_flight += 1
        if following is not None:
            self._schedule.put(following)

    def _finish_turn(self, session: Session[Handle]) -> None:
        """The session's exchange is over."""
        if not session.stalled:
            self._leave_place()
        self._num_stalled -= session.stalled
        session.assignment, session.handle, session.update, session.stalled = None, None, None, False

    def _go_on(self, session: Session[Handle], delay: float = 0.0) -> None:
        """The session's exchange is over, and it will have another one."""
        self._finish_turn(session)
        if delay > 0.0:
            session.resting = True  # meanwhile its place is another's
            self._schedule.put(session, delay)
        else:
            self._start_or_queue(session)

    def _advance(self, session: Session[Handle]) -> None:
        """One step of one session, by whichever worker is free."""
        if self._closed.is_set():
            return
        if session.resting:
            session.resting = False
            self._start_or_queue(session)
            return
        if session.assignment is None:
            session.assignment = self._federation.assign(session.client)
            if session.assignment is None:  # the run is over
                return
        assignment = session.assignment
        try:
            if session.update is not None:
                self._hand_in(session, assignment, session.update)
            elif session.handle is None:
                self._send(session, assignment)
            else:
                self._fetch(session, session.handle, assignment)
        except LostError as lost:
            self._on_loss(session, assignment, lost)

    def _send(self, session: Session[Handle], assignment: Assignment) -> None:
        session.handle = self._carrier.send(assignment)
        session.sent_at = self._clock()
        self._schedule.put(session, self._pace.poll_seconds)

    def _fetch(self, session: Session[Handle], handle: Handle, assignment: Assignment) -> None:
        update = self._carrier.fetch(handle, assignment)
        waited = self._clock() - session.sent_at
        if update is None:
            if waited > self._settings.ttl_seconds:
                raise LostError(Event.EXPIRED, f"no update in {waited:.0f} s")
            if not session.stalled and waited > self._patience() and self._may_stall():
                session.stalled = True
                self._num_stalled += 1
                self._leave_place()
            # look again after a tenth of the time waited so far
            delay = max(self._pace.poll_seconds, 0.1 * waited)
            self._schedule.put(session, min(delay, self._pace.max_poll_seconds))
            return
        session.num_failures = 0
        session.update = update
        self._waits.append(waited)
        if (delay := self._hold(session.client)) > 0.0:
            self._schedule.put(session, delay)
        else:
            self._hand_in(session, assignment, update)

    def _patience(self) -> float:
        """How long a client may take before its place in flight becomes another's."""
        if self._settings.max_in_flight is None:
            return math.inf
        longest = self._settings.stall_seconds
        if not self._waits:
            return longest
        return max(STALLED_AFTER * sorted(self._waits)[len(self._waits) // 2], longest / 10.0)

    def _may_stall(self) -> bool:
        """Until the first update has come, everyone may just be slow: then at most as many as have a place."""
        return bool(self._waits) or self._num_stalled < (self._settings.max_in_flight or 0)

    def _hand_in(self, session: Session[Handle], assignment: Assignment, update: Reply) -> None:
        def judged(done: Future[Verdict]) -> None:
            if done.cancelled() or done.exception() is not None:  # the run is over
                return
            if self._federation.quarantined(session.client):
                self._finish_turn(session)
            else:
                self._go_on(session)

        self._federation.deliver(assignment, update).add_done_callback(judged)

    def _hold(self, client: str) -> float:
        """Seconds to keep an update back, so that clients differ in speed: an exponential draw around its own mean."""
        if self._settings.hold_seconds == 0.0:
            return 0.0
        seed = [self._settings.hold_seed, *client.encode()]
        if client not in self._speeds:
            self._speeds[client] = np.random.default_rng(seed)
        slowness = np.random.default_rng([*seed, 1]).lognormal()
        return float(self._speeds[client].exponential(self._settings.hold_seconds * slowness))

    def _on_loss(self, session: Session[Handle], assignment: Assignment, lost: LostError) -> None:
        if self._closed.is_set():
            return
        self._federation.give_up(assignment, lost.event, lost.reason)
        if lost.event is Event.LEFT:
            self._part(session)
            return
        session.num_failures += 1
        limit = self._settings.max_failures
        if limit is not None and session.num_failures >= limit:
            self._federation.note(session.client, Event.LEFT, f"{session.num_failures} failures in a row")
            self._part(session)
            return
        self._go_on(session, self._back_off(session.num_failures))

    def _part(self, session: Session[Handle]) -> None:
        with self._lock:
            num_failures = session.num_failures + 1
            self._left[session.client] = (self._clock() + self._back_off(num_failures), num_failures)
            self._sessions.pop(session.client, None)  # last: discovery reads both without the lock
        self._finish_turn(session)

    def _on_trouble(self, session: Session[Handle], error: Exception) -> None:
        """A call to the engine failed: give the ticket back and try this client again later."""
        if self._closed.is_set() or self._federation.stopped:
            return
        if isinstance(error, StoreError):
            raise error
        if session.assignment is not None:
            self._on_loss(session, session.assignment, LostError(Event.ENGINE_TROUBLE, describe(error)))
        else:
            self._federation.note(session.client, Event.ENGINE_TROUBLE, describe(error))
            self._go_on(session, self._back_off(1))

    def _back_off(self, num_failures: int) -> float:
        doublings = min(num_failures - 1, 1000)  # a float holds no more
        return float(min(self._settings.retry_seconds * 2.0**doublings, self._settings.max_retry_seconds))
