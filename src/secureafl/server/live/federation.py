"""The machine among threads: engines ask for work for their clients and deliver updates; one consumer steps.

An engine's threads call `assign`, `deliver` and `give_up` at any time. Updates enter one queue, and the thread that
calls `run` takes them in order of arrival, steps the machine, writes the journal, and resolves the future that
`deliver` returned, so that the client gets the new model at once. Nothing here knows which engine it serves.

The first failure ends the run: of a write, before anyone is handed what is not on record; of any thread that serves
clients, with its reason on record. `run` then raises, and the run can be resumed.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from secureafl.errors import EvaluationError, FederationError, SettingsError, StoreError
from secureafl.files import safetensors_parts
from secureafl.layout import Layout
from secureafl.server.federation_settings import FederationSettings
from secureafl.server.live.evaluation import Evaluate, Evaluation, Evaluator
from secureafl.server.live.quarantine import Quarantine
from secureafl.server.live.telemetry import Standing, Telemetry, num_excluded
from secureafl.server.machine import Machine
from secureafl.server.record.entries import Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.run import Run
from secureafl.server.record.store import MODEL, Store
from secureafl.types import Model, NamedArrays, Vector, Verdict
from secureafl.wire import Reply

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
    """One run: a machine, its clients' updates, a journal, and an end."""

    def __init__(
        self,
        machine: Machine,
        layout: Layout,
        settings: FederationSettings,
        *,
        evaluate: Evaluate | None = None,
        report: Callable[[Status], None] | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        store: Store | None = None,
    ) -> None:
        """`seed` is the run's secret, which the machine's defense was built with. `store` takes the place of what
        `settings.run_dir` names.
        """
        if settings.stop_at_metric is not None and evaluate is None:
            raise SettingsError(
                f"stop_at_metric = {settings.stop_at_metric!r} needs an evaluate function that returns this metric"
            )
        self.layout = layout
        self.settings = settings
        start = Run.resume if settings.resume else Run
        facts = {**settings.facts(), "layout": layout.describe(), "seed": seed}
        self._run = start(machine, settings, facts=facts, clock=clock, store=store)
        self._machine = machine
        self.telemetry = Telemetry(lambda: self.seconds)
        self._run.watch(self.telemetry)
        self._evaluator: Evaluator | None = None
        if evaluate is not None:
            self._evaluator = Evaluator(evaluate, layout, self.telemetry.evaluated, self._on_evaluation_error)
        self._evaluation_error: Exception | None = None
        self._report = report
        self._lock = threading.Lock()  # around the run
        self._updates: queue.SimpleQueue[tuple[Assignment, Reply, Future[Verdict]] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._stood_at = -STANDING_SECONDS
        self._failure: BaseException | None = None
        self._quarantine = Quarantine(settings.max_refusals)
        if settings.resume:
            for entry in self.journal.entries():
                self._quarantine.row(entry)

    @property
    def stopped(self) -> bool:
        """Whether no more work is given out."""
        return self._stopped.is_set()

    @property
    def model(self) -> Model:
        """The present model."""
        return self._machine.model

    @property
    def seconds(self) -> float:
        """Time since the run began."""
        return self._run.seconds

    @property
    def journal(self) -> Journal:
        """Everything that happened so far."""
        return self._run.journal

    def quarantined(self, client: str) -> bool:
        """Whether this client gets no work: it sent too much that could not be judged, or has the name of the server
        above."""
        return client in self._quarantine or client == self.settings.upstream

    def assign(self, client: str) -> Assignment | None:
        """The present model for this client, under a new ticket; None if the run is over or it is quarantined."""
        if self.stopped or self.quarantined(client):
            return None
        return self._hand_out(client)

    def _hand_out(self, client: str) -> Assignment | None:
        with self._lock:
            if self.stopped:  # a write that failed in the meantime
                return None
            ticket = self._run.issue(client)
            params = self._machine.model_of(ticket).params
        return Assignment(ticket.number, client, ticket.version, params, secrets.token_bytes(NONCE_BYTES))

    def follow(self, move: Vector) -> Future[Verdict]:
        """Queue a move of the server above, which the model follows whole. The future resolves once it is on record."""
        if self.settings.upstream is None:
            raise SettingsError("no server is above this one: set upstream to the name it shall have on record")
        assignment = self._hand_out(self.settings.upstream)
        if assignment is None:
            raise FederationError("the run is over: there is nothing that could follow the server above")
        return self.deliver(assignment, move)

    def deliver(self, assignment: Assignment, update: Reply) -> Future[Verdict]:
        """Queue a client's update: its update, or why there is none in it. The future resolves once it was judged."""
        done: Future[Verdict] = Future()
        self._updates.put((assignment, update, done))
        if self._failure is not None:
            self._drain()
        return done

    def give_up(self, assignment: Assignment, event: Event, reason: str) -> None:
        """No update will come for this assignment: record why."""
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

    def report(self, client: str, values: Mapping[str, float]) -> None:
        """Write down what a client says of itself along with an update. Nothing is decided by it."""
        with self._lock:
            self._run.note(client, Event.REPORTED, evidence=values)

    def stop(self) -> None:
        """End the run as soon as the arrival at hand is done. Safe in a signal handler."""
        self._stopped.set()
        self._updates.put(None)

    def fail(self, error: BaseException) -> None:
        """End the run because a part of the server failed; `run` raises it. Only the first failure counts."""
        self._failure = self._failure or error
        self.stop()

    def close(self) -> None:
        """Make the journal durable and let go of the run's files. Call it once no engine thread is left."""
        self._run.close()

    def keep_file(self, name: str, content: bytes | Iterable[bytes | memoryview]) -> None:
        """Keep a file with the run; nothing is kept of a run in memory."""
        if (store := self._run.store) is None:
            return
        try:
            store.files.write(name, [content] if isinstance(content, bytes) else content)
        except OSError as error:
            raise self.journal.fail(f"cannot write {store.files.where(name)}: {error.strerror}") from None

    def status(self) -> Status:
        """Where the run stands now."""
        telemetry = self.telemetry.read()
        accepted = telemetry.num_arrivals("accepted")
        return Status(
            version=self._machine.model.version,
            accepted=accepted,
            rejected=telemetry.num_arrivals() - accepted,
            staleness=telemetry.recent_staleness,
            rate=telemetry.recent_rate,
            num_clients=self._machine.num_clients,
            latest=telemetry.latest,
        )

    def run(self) -> Result:
        """Consume updates until a stop condition holds; returns the final model and what led to it."""
        try:
            self.begin()
            while not self.is_over():
                self.step(self._patience())
            return self.conclude()
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._drain()

    def begin(self) -> None:
        """Before the first step."""
        self._next_report = self.settings.progress_seconds
        self._evaluate_if_due()

    def step(self, patience: float) -> bool:
        """Take one update, waiting so long for it; returns whether there was one."""
        self._run.require_hold()
        if self.seconds >= self._next_report:
            self._send_report()
            self._next_report = self.seconds + self.settings.progress_seconds
        if self.seconds >= self._stood_at + STANDING_SECONDS:
            self._stand()
        try:
            item = self._updates.get(timeout=patience) if patience > 0.0 else self._updates.get_nowait()
        except queue.Empty:
            return False
        if item is not None:
            self._take(*item)
        return item is not None

    def _take(self, assignment: Assignment, update: Reply, done: Future[Verdict]) -> None:
        try:
            with self._lock:
                verdict = self._run.receive(assignment.ticket, update)
                self._verdicts[assignment.client, str(verdict.reason)] += 1
                if count := self._quarantine.hear(assignment.client, str(verdict.reason)):
                    reason = f"{count} of its last answers could not be judged"
                    self._run.note(assignment.client, Event.QUARANTINED, reason)
        except BaseException as error:
            self.fail(error)  # first: whoever waits for this may ask for the next model at once
            done.set_exception(error)
            raise
        done.set_result(verdict)
        self._evaluate_if_due()

    def _drain(self) -> None:
        """Nobody will judge what is still in the queue: tell those who wait for it."""
        while True:
            try:
                item = self._updates.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[2].cancel()

    def _on_evaluation_error(self, error: Exception) -> None:
        self._evaluation_error = error
        try:
            self.note("", Event.EVALUATION_FAILED, describe(error))
        except StoreError as failure:
            self.fail(failure)

    def _stand(self) -> None:
        """Count over all clients, on the consumer's own thread, where nothing moves meanwhile."""
        self._stood_at = self.seconds
        with self._lock:
            standing = Standing(
                known=self._machine.num_clients,
                quarantined=len(self._quarantine),
                excluded=num_excluded(self._machine.defense),
                tickets_open=len(self._machine.open_tickets),
                updates_waiting=self._updates.qsize(),
            )
        self.telemetry.stand(standing)

    def _evaluate_if_due(self) -> None:
        due = self._machine.model.version % self.settings.evaluate_every == 0
        if self._evaluator is not None and due:
            self._evaluator.offer(self._machine.published, self.seconds)

    def is_over(self) -> bool:
        """Whether a stop condition holds."""
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
        return self._evaluator.best(metric) >= value

    def _patience(self) -> float:
        """How long to wait for an update before looking at the clock again."""
        limits = [self._next_report - self.seconds, 1.0]
        if self.settings.stop_after_seconds is not None:
            limits.append(self.settings.stop_after_seconds - self.seconds)
        return max(0.001, min(limits))

    def _send_report(self) -> None:
        self.journal.commit()  # so that whoever reads along sees what happened
        if self._report is not None:
            self._report(self.status())

    def conclude(self) -> Result:
        """After the last step: save the model, evaluate it, and write down that the run is finished."""
        self._stopped.set()
        self._raise_failure()
        model, seconds = self._machine.published, self.seconds
        arrays = self.layout.unflatten(model.params)
        self._save(arrays)
        evaluations = self._evaluator.finish(model, seconds) if self._evaluator is not None else []
        with self._lock:
            self._run.finish()
        self._raise_failure()
        self._stand()
        self._send_report()
        if self._evaluation_error is not None:
            raise EvaluationError(
                f"evaluate failed: {describe(self._evaluation_error)}. The run is finished and its model is saved"
            ) from self._evaluation_error
        return Result(arrays, model.version, seconds, self._verdicts, evaluations)

    def _save(self, arrays: NamedArrays) -> None:
        self.keep_file(MODEL, safetensors_parts(arrays))

    def _raise_failure(self) -> None:
        """If a part of the server failed, write down why and raise."""
        if self._failure is None:
            return
        with contextlib.suppress(StoreError):  # then the journal is what failed
            self.note("", Event.FAILED, describe(self._failure))
            self.journal.commit()
        if isinstance(self._failure, StoreError):
            raise self._failure
        raise FederationError(
            f"the run was ended: {describe(self._failure)}. What was learned is on record: resume it"
        ) from self._failure


def describe(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"
