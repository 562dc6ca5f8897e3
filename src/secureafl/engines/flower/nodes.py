"""Flower's nodes, each a small session: push the model, wait for the answer, hand it in, push again.

Every answer is pulled on its own, so an upload that stalls blocks one worker and no other node. A bounded pool of
workers serves any number of sessions. Nodes that appear later are taken in, vanished ones forgotten until they return.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from secureafl.engines.flower.config import FlowerSettings
from secureafl.engines.flower.records import Records
from secureafl.engines.flower.schedule import Schedule
from secureafl.server import Assignment, Federation
from secureafl.server.journal import Event
from secureafl.types import Reason, Vector, Verdict

EXPIRED, NODE_UNAVAILABLE = 3, 5  # Flower's error codes: the answer's time is over; the node has gone
CLOSE_SECONDS = 5.0


@dataclass(eq=False)
class Session:
    """What is going on with one node. Only one worker at a time holds it."""

    node_id: int
    assignment: Assignment | None = None
    message_id: str = ""
    pushed_at: float = 0.0
    answer: Vector | Reason | None = None  # pulled, but held back for a drawn time
    num_failures: int = 0

    @property
    def client(self) -> str:
        return str(self.node_id)


class NodePool:
    """Keeps every reachable node busy until the federation stops."""

    def __init__(
        self,
        grid: Grid,
        federation: Federation,
        records: Records,
        settings: FlowerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grid = grid
        self._federation = federation
        self._records = records
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}
        self._left: dict[int, tuple[float, int]] = {}  # node -> (not before, failures so far)
        self._waiting: deque[Session] = deque()  # nodes whose turn has not come, with max_in_flight
        self._num_in_flight = 0
        self._closed = threading.Event()
        self._speeds: dict[int, np.random.Generator] = {}
        self._schedule: Schedule[Session] = Schedule(
            self._advance, self._on_trouble, num_workers=settings.num_workers, clock=clock
        )
        self._discovery = threading.Thread(target=self._discover, daemon=True)
        self._discovery.start()

    def close(self) -> None:
        """Leave all nodes alone."""
        self._closed.set()
        self._schedule.close(CLOSE_SECONDS)
        self._discovery.join(CLOSE_SECONDS)

    def _discover(self) -> None:
        """Look for nodes that joined or came back; begin once there are enough."""
        begun = False
        while not self._closed.is_set():
            try:
                present = set(self._grid.get_node_ids())
            except Exception as error:  # the engine's trouble must not end the run
                self._federation.note("", Event.ENGINE_TROUBLE, _describe(error))
                present = set()
            begun = begun or len(present) >= self._settings.min_nodes
            if begun:
                for node_id in sorted(present - self._sessions.keys()):
                    if not self._federation.quarantined(str(node_id)):
                        self._take_in(node_id)
            self._closed.wait(self._settings.discovery_seconds)

    def _take_in(self, node_id: int) -> None:
        not_before, num_failures = self._left.get(node_id, (0.0, 0))
        if self._clock() < not_before:
            return
        session = Session(node_id, num_failures=num_failures)
        with self._lock:
            self._sessions[node_id] = session
        returned = node_id in self._left
        self._federation.note(session.client, Event.RETURNED if returned else Event.JOINED)
        self._start_or_queue(session)

    def _start_or_queue(self, session: Session) -> None:
        with self._lock:
            limit = self._settings.max_in_flight
            if limit is not None and self._num_in_flight >= limit:
                self._waiting.append(session)
                return
            self._num_in_flight += 1
        self._schedule.put(session)

    def _finish_turn(self, session: Session | None, delay: float = 0.0) -> None:
        """The session's exchange is over: let another node have its place, and queue it again if it goes on."""
        with self._lock:
            self._num_in_flight -= 1
            following = self._waiting.popleft() if self._waiting else None
            if following is not None:
                self._num_in_flight += 1
        if following is not None:
            self._schedule.put(following)
        if session is not None:
            session.assignment, session.answer = None, None
            if delay > 0.0:
                timer = threading.Timer(delay, self._start_or_queue, [session])
                timer.daemon = True
                timer.start()
            else:
                self._start_or_queue(session)

    def _advance(self, session: Session) -> None:
        """One step of one session, by whichever worker is free."""
        if self._closed.is_set():
            return
        if session.assignment is None:
            self._push(session)
        elif session.answer is not None:
            self._hand_in(session, session.assignment, session.answer)
        else:
            self._pull(session, session.assignment)

    def _push(self, session: Session) -> None:
        assignment = session.assignment = self._federation.assign(session.client)
        if assignment is None:  # the run is over
            return
        message = self._records.encode(assignment, session.node_id, self._settings.ttl_seconds)
        ids = list(self._grid.push_messages([message]))
        if not ids or not ids[0]:  # simulation leaves a refused push out, deployment returns an empty id
            self._forget(session, assignment, "push refused")
            return
        session.message_id, session.pushed_at = ids[0], self._clock()
        self._schedule.put(session, self._settings.poll_seconds)

    def _pull(self, session: Session, assignment: Assignment) -> None:
        answers = list(self._grid.pull_messages([session.message_id]))
        waited = self._clock() - session.pushed_at
        if not answers:
            if waited > self._settings.ttl_seconds:
                self._retry(session, assignment, Event.EXPIRED, f"no answer in {waited:.0f} s")
            else:  # look again after a tenth of the time waited so far
                delay = max(self._settings.poll_seconds, 0.1 * waited)
                self._schedule.put(session, min(delay, self._settings.max_poll_seconds))
        elif answers[0].has_error():
            self._on_error_reply(session, assignment, answers[0])
        else:
            session.num_failures = 0
            session.answer = self._records.decode(answers[0], assignment)
            if (delay := self._hold(session)) > 0.0:
                self._schedule.put(session, delay)
            else:
                self._hand_in(session, assignment, session.answer)

    def _hand_in(self, session: Session, assignment: Assignment, answer: Vector | Reason) -> None:
        def judged(_: Future[Verdict]) -> None:
            self._finish_turn(None if self._federation.quarantined(session.client) else session)

        self._federation.deliver(assignment, answer).add_done_callback(judged)

    def _hold(self, session: Session) -> float:
        """Seconds to keep an answer back, so that nodes differ in speed: an exponential draw around the node's mean."""
        if self._settings.hold_seconds == 0.0:
            return 0.0
        if session.node_id not in self._speeds:
            self._speeds[session.node_id] = np.random.default_rng([self._settings.hold_seed, session.node_id])
        rng = self._speeds[session.node_id]
        slowness = np.random.default_rng([self._settings.hold_seed, session.node_id, 1]).lognormal()
        return float(rng.exponential(self._settings.hold_seconds * slowness))

    def _on_error_reply(self, session: Session, assignment: Assignment, answer: Message) -> None:
        code, reason = answer.error.code, f"code {answer.error.code}: {answer.error.reason or 'no reason given'}"
        if code == NODE_UNAVAILABLE:
            self._forget(session, assignment, reason)
        else:
            self._retry(session, assignment, Event.EXPIRED if code == EXPIRED else Event.CLIENT_ERROR, reason)

    def _retry(self, session: Session, assignment: Assignment, event: Event, reason: str) -> None:
        self._federation.give_up(assignment, event, reason)
        session.num_failures += 1
        limit = self._settings.max_failures
        if limit is not None and session.num_failures >= limit:
            self._part(session, f"{session.num_failures} failures in a row")
            return
        self._finish_turn(session, self._back_off(session.num_failures))

    def _forget(self, session: Session, assignment: Assignment, reason: str) -> None:
        self._federation.give_up(assignment, Event.LEFT, reason)
        self._part(session)

    def _part(self, session: Session, note: str = "") -> None:
        if note:
            self._federation.note(session.client, Event.LEFT, note)
        with self._lock:
            self._sessions.pop(session.node_id, None)
            num_failures = session.num_failures + 1
            self._left[session.node_id] = (self._clock() + self._back_off(num_failures), num_failures)
        self._finish_turn(None)

    def _on_trouble(self, session: Session, error: Exception) -> None:
        """A grid call failed: give the ticket back and try this node again later."""
        if self._closed.is_set():
            return
        if session.assignment is not None:
            self._retry(session, session.assignment, Event.ENGINE_TROUBLE, _describe(error))
        else:
            self._federation.note(session.client, Event.ENGINE_TROUBLE, _describe(error))
            self._finish_turn(session, self._back_off(1))

    def _back_off(self, num_failures: int) -> float:
        return float(min(self._settings.retry_seconds * 2.0 ** (num_failures - 1), self._settings.max_retry_seconds))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
