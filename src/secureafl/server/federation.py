"""The machine among threads: engines ask for work for their clients and deliver answers; one consumer steps.

An engine's threads call `assign`, `deliver` and `give_up` at any time. Answers enter one queue, and the thread that
calls `run` takes them in order of arrival, steps the machine, writes the journal, and resolves the future that
`deliver` returned, so that the client gets the new model at once. Nothing here knows which engine it serves.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import save_file

from secureafl.layout import Layout
from secureafl.server.config import FederationSettings
from secureafl.server.evaluation import Evaluate, Evaluation, Evaluator
from secureafl.server.figures import Figures, Standing, num_silent
from secureafl.server.journal import Event, Journal
from secureafl.server.machine import Machine
from secureafl.server.run import Run
from secureafl.types import REFUSALS, NamedArrays, Reason, Vector, Verdict

NONCE_BYTES = 16
STANDING_SECONDS = 1.0  # how old the figures may be that are counted over all clients


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A model handed to a client, as the server remembers it."""

    ticket: int
    client: str
    version: int
    params: Vector
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Status:
    """Where a federation stands."""

    version: int
    accepted: int
    rejected: int
    staleness: float
    rate: float
    num_clients: int
    latest: Evaluation | None


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a finished federation leaves."""

    arrays: NamedArrays
    version: int
    seconds: float
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(client, reason) -> how often."""
    evaluations: list[Evaluation] = field(default_factory=list)


class Federation:
    """One run: a machine, its clients' answers, a journal, and an end."""

    def __init__(
        self,
        machine: Machine,
        layout: Layout,
        settings: FederationSettings,
        *,
        evaluate: Evaluate | None = None,
        report: Callable[[Status], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.layout = layout
        self.settings = settings
        start = Run.resume if settings.resume else Run
        self._run = start(machine, settings, facts=settings.facts(), clock=clock)
        self._machine = machine
        self.figures = Figures(lambda: self.seconds)
        self._run.watch(self.figures)
        self._evaluator = Evaluator(evaluate, layout, self.figures.evaluated) if evaluate is not None else None
        self._report = report
        self._lock = threading.Lock()  # around the run
        self._answers: queue.SimpleQueue[tuple[Assignment, Vector | Reason, Future[Verdict]] | None] = (
            queue.SimpleQueue()
        )
        self._stopped = threading.Event()
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._stood_at = -STANDING_SECONDS
        self._refusals: Counter[str] = Counter()  # in a row, per client
        if settings.resume and settings.max_refusals is not None:
            for entry in self.journal.entries(Event.ARRIVAL):
                self._count_refusal(entry.client, entry.reason)

    @property
    def stopped(self) -> bool:
        """Whether no more work is given out."""
        return self._stopped.is_set()

    @property
    def seconds(self) -> float:
        """Time since the run began."""
        return self._run.seconds

    @property
    def journal(self) -> Journal:
        """Everything that happened so far."""
        return self._run.journal

    def quarantined(self, client: str) -> bool:
        """Whether this client sent so much that could not be judged that it gets no more work."""
        limit = self.settings.max_refusals
        return limit is not None and self._refusals[client] >= limit

    def assign(self, client: str) -> Assignment | None:
        """The present model for this client, under a new ticket; None if the run is over or it is quarantined."""
        if self.stopped or self.quarantined(client):
            return None
        with self._lock:
            ticket = self._run.issue(client)
            params = self._machine.model_of(ticket).params
        return Assignment(ticket.number, client, ticket.version, params, secrets.token_bytes(NONCE_BYTES))

    def deliver(self, assignment: Assignment, answer: Vector | Reason) -> Future[Verdict]:
        """Queue a client's answer: its update, or why there is none in it. The future resolves once it was judged."""
        done: Future[Verdict] = Future()
        self._answers.put((assignment, answer, done))
        return done

    def give_up(self, assignment: Assignment, event: Event, reason: str) -> None:
        """No answer will come for this assignment: record why."""
        with self._lock:
            self._run.withdraw(assignment.ticket, event, reason)

    def withdraw_all(self, reason: str) -> None:
        """No ticket that is out will be answered any more, as when a restarted engine has forgotten its messages."""
        with self._lock:
            for ticket in self._machine.open_tickets:
                self._run.withdraw(ticket.number, Event.EXPIRED, reason)

    def note(self, client: str, event: Event, reason: str = "") -> None:
        """Write a row about a client that is not an arrival."""
        with self._lock:
            self._run.note(client, event, reason)

    def stop(self) -> None:
        """End the run as soon as the arrival at hand is done. Safe in a signal handler."""
        self._stopped.set()
        self._answers.put(None)

    def close(self) -> None:
        """Make the journal durable and let go of the run's files. Call it once no engine thread is left."""
        self._run.close()

    def status(self) -> Status:
        """Where the run stands now."""
        figures = self.figures.read()
        accepted = figures.num_arrivals("accepted")
        return Status(
            version=self._machine.model.version,
            accepted=accepted,
            rejected=figures.num_arrivals() - accepted,
            staleness=figures.recent_staleness,
            rate=figures.recent_rate,
            num_clients=len(self._machine.roster),
            latest=figures.latest,
        )

    def run(self) -> Result:
        """Consume answers until a stop condition holds; returns the final model and what led to it."""
        self._evaluate_if_due()
        next_report = self.settings.progress_seconds
        while not self._is_over():
            if self.seconds >= next_report:
                self._send_report()
                next_report = self.seconds + self.settings.progress_seconds
            if self.seconds >= self._stood_at + STANDING_SECONDS:
                self._stand()
            try:
                item = self._answers.get(timeout=self._patience(next_report))
            except queue.Empty:
                continue
            if item is not None:
                self._take(*item)
        self._stopped.set()
        return self._conclude()

    def _take(self, assignment: Assignment, answer: Vector | Reason, done: Future[Verdict]) -> None:
        with self._lock:
            verdict = self._run.receive(assignment.ticket, answer)
        self._verdicts[assignment.client, str(verdict.reason)] += 1
        self._count_refusal(assignment.client, str(verdict.reason))
        if self.quarantined(assignment.client):
            self.note(assignment.client, Event.QUARANTINED, f"{self._refusals[assignment.client]} refusals in a row")
        done.set_result(verdict)
        self._evaluate_if_due()

    def _count_refusal(self, client: str, reason: str) -> None:
        """A refused answer adds to its client's row of them; one that could be judged, believed or not, ends it."""
        self._refusals[client] = self._refusals[client] + 1 if reason in REFUSALS else 0

    def _stand(self) -> None:
        """Count over all clients, on the consumer's own thread, where nothing moves meanwhile."""
        self._stood_at, limit = self.seconds, self.settings.max_refusals
        with self._lock:
            standing = Standing(
                known=len(self._machine.roster),
                quarantined=0 if limit is None else sum(count >= limit for count in self._refusals.values()),
                silent=num_silent(self._machine.defense),
                tickets_open=len(self._machine.open_tickets),
                answers_waiting=self._answers.qsize(),
            )
        self.figures.stand(standing)

    def _evaluate_if_due(self) -> None:
        due = self._machine.model.version % self.settings.evaluate_every == 0
        if self._evaluator is not None and due:
            self._evaluator.offer(self._machine.published, self.seconds)

    def _is_over(self) -> bool:
        settings, version = self.settings, self._machine.model.version
        return (
            self.stopped
            or (settings.stop_after_updates is not None and version >= settings.stop_after_updates)
            or (settings.stop_after_seconds is not None and self.seconds >= settings.stop_after_seconds)
            or self._target_reached()
        )

    def _target_reached(self) -> bool:
        metric, value = self.settings.stop_at_metric, self.settings.stop_at_value
        if metric is None or value is None or self._evaluator is None:
            return False
        return any(done.metrics.get(metric, -np.inf) >= value for done in self._evaluator.results)

    def _patience(self, next_report: float) -> float:
        """How long to wait for an answer before looking at the clock again."""
        limits = [next_report - self.seconds, 1.0]
        if self.settings.stop_after_seconds is not None:
            limits.append(self.settings.stop_after_seconds - self.seconds)
        return max(0.001, min(limits))

    def _send_report(self) -> None:
        self.journal.commit()  # so that whoever reads along sees what happened
        if self._report is not None:
            self._report(self.status())

    def _conclude(self) -> Result:
        model, seconds = self._machine.published, self.seconds
        evaluations = self._evaluator.finish(model, seconds) if self._evaluator is not None else []
        arrays = self.layout.unflatten(model.params)
        if self.settings.run_dir is not None:
            save_file(arrays, self.settings.run_dir / "model.safetensors")
        self._run.finish()
        self._stand()
        self._send_report()
        return Result(arrays, model.version, seconds, self._verdicts, evaluations)
