"""Where figures can be sent while a run goes on: TensorBoard, MLflow, Weights & Biases.

A sink is named `KIND:TARGET`, for instance `tensorboard:runs/board`. Each has an extra of its own name that installs
its library. A sink that fails costs figures and one line, never the run: what it missed of the evaluations is sent when
it works again.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.server.live.telemetry import Reading, Telemetry
from secureafl.server.record.entries import Event
from secureafl.settings import nearest

PROJECT = "secureafl"
RETRY_SECONDS = 60.0
CLOSE_SECONDS = 30.0

Facts: TypeAlias = Mapping[str, object]
"""What a run says of itself: its settings."""


class Sink(Protocol):
    """Takes telemetry. May be slow and may raise: whoever calls it is prepared."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Keep these figures of the model of version `step`. Steps may come out of order."""

    def close(self) -> None:
        """Make everything durable."""


class TensorBoard:
    """Event files in `TARGET/<name of the run>`, written by TensorBoard's own writer; PyTorch is not needed."""

    def __init__(self, target: str, name: str, facts: Facts) -> None:
        writer = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._event = importlib.import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer = writer.EventFileWriter(str(Path(target) / name))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        content = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=content)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run in the store or on the server that the target, a tracking URI, names."""

    def __init__(self, target: str, name: str, facts: Facts) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no figures about the federation to third parties
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default minutes; we come again anyway
        self._entities = importlib.import_module("mlflow.entities")
        self._client = importlib.import_module("mlflow.tracking").MlflowClient(target)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        self._run = self._client.create_run(place, run_name=name).info.run_id
        settings = [self._entities.Param(key, str(value)) for key, value in facts.items()]
        self._client.log_batch(self._run, params=settings)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(key, value, now, step) for key, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run folder below the target, for `wandb sync`. Only `WANDB_MODE=online` lets it use the network."""

    def __init__(self, target: str, name: str, facts: Facts) -> None:
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # and no reports of its own faults
        wandb = importlib.import_module("wandb")
        Path(target).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            mode=mode,
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=target,
            name=name,
            config=dict(facts),
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._run.define_metric("*", step_metric="version")  # its own steps must never go back; ours may

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"version": step, **values})

    def close(self) -> None:
        self._run.finish()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of sink, and the module that it needs."""

    make: Callable[[str, str, Facts], Sink]
    module: str
    target: str
    """What the target is, in a word or two."""


SINKS: Mapping[str, Kind] = {
    "tensorboard": Kind(TensorBoard, "tensorboard", "DIR"),
    "mlflow": Kind(MLflow, "mlflow", "URI"),
    "wandb": Kind(WeightsAndBiases, "wandb", "DIR"),
}


def parse_sink(text: str) -> tuple[Kind, str]:
    """Kind and target of `KIND:TARGET`."""
    name, _, target = text.partition(":")
    if name not in SINKS:
        raise UnknownSettingError(f"there is no sink {name!r}; {nearest(name, list(SINKS))}")
    if not target:
        raise SettingsError(f"the sink {text!r} names no place: write {name}:{SINKS[name].target}")
    return SINKS[name], target


def split_sinks(value: Any) -> Any:
    """A text with commas as a list: Flower's run config knows no lists."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def check_sinks(texts: Iterable[str]) -> None:
    """Raise for what the operator must change: a word that names no sink, or a library that is not installed."""
    for text in texts:
        kind, _ = parse_sink(text)
        if importlib.util.find_spec(kind.module) is None:
            extra = text.partition(":")[0]
            raise SettingsError(f'the sink {text!r} needs its library: pip install "secureafl[{extra}]"')


class Feed:
    """Carries the figures of a run to one sink: at each `write`, what is new."""

    def __init__(
        self,
        text: str,
        telemetry: Telemetry,
        *,
        name: str,
        facts: Facts,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        text  the sink, `KIND:TARGET`; it is opened at the first `write`
        name  of the run, as the sink shows it
        say   takes a line for the operator
        """
        self._text = text
        self._telemetry = telemetry
        self._name = name
        self._facts = facts
        self._say = say
        self._clock = clock
        self._sink: Sink | None = None
        self._before = telemetry.read()
        self._num_evaluations = 0
        self._failed_at: float | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, seconds: float) -> None:
        """Open the sink and write every so many seconds, on a thread of its own."""
        self._thread = threading.Thread(target=self._work, args=[seconds], name=f"sink {self._text}", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Send what is new. Never raises; after a failure it waits a while before it tries again."""
        if self._failed_at is not None and self._clock() < self._failed_at + RETRY_SECONDS:
            return
        try:
            self._send()
        except Exception as error:  # whatever a library or a network may raise
            self._fail(error)
        else:
            self._failed_at = None

    def close(self) -> None:
        """Send the rest and close the sink. One that hangs is left behind."""
        if self._thread is None:
            self._finish()
            return
        self._over.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._say(f"sink {self._text} did not finish in {CLOSE_SECONDS:.0f} s: its last figures may be missing")

    def _work(self, seconds: float) -> None:
        self.write()
        while not self._over.wait(seconds):
            self.write()
        self._finish()

    def _finish(self) -> None:
        self.write()
        try:
            if self._sink is not None:
                self._sink.close()
        except Exception as error:
            self._fail(error)

    def _send(self) -> None:
        if self._sink is None:
            kind, target = parse_sink(self._text)
            self._sink = kind.make(target, self._name, self._facts)
        for evaluation in self._telemetry.evaluations(self._num_evaluations):
            scores = {f"evaluation/{name}": value for name, value in evaluation.metrics.items()}
            self._sink.scalars(evaluation.version, scores)
            self._num_evaluations += 1
        now = self._telemetry.read()
        if _moved(now, self._before):
            self._sink.scalars(now.version, server_scalars(now, self._before))
            self._before = now

    def _fail(self, error: Exception) -> None:
        if self._failed_at is None:
            self._say(f"sink {self._text} failed, and the run goes on: {type(error).__name__}: {error}")
        self._failed_at = self._clock()


def _moved(now: Reading, before: Reading) -> bool:
    return (now.version, now.events, now.standing) != (before.version, before.events, before.standing)


def server_scalars(now: Reading, before: Reading) -> dict[str, float]:
    """The server's figures as sinks draw them: means and shares since the reading before, counts in all."""
    num_new = now.num_arrivals() - before.num_arrivals()
    found: dict[str, float | None] = {
        "server/clients_known": now.standing.known,
        "server/clients_excluded": now.standing.excluded,
        "server/clients_quarantined": now.standing.quarantined,
        "server/lipschitz_factor": now.lipschitz_factor,
        "server/lipschitz_threshold": now.threshold,
        "server/staleness": now.staleness.mean_since(before.staleness),
        **{f"server/{what}_seconds": time.mean_since(before.times[what]) for what, time in now.times.items()},
        **{f"events/{event}": count for event, count in now.events.items() if event is not Event.ISSUED and count},
    }
    if num_new > 0:
        for verdict in ("accepted", "rejected", "refused"):
            found[f"server/{verdict}"] = (now.num_arrivals(verdict) - before.num_arrivals(verdict)) / num_new
    if num_new > 0 and now.seconds > before.seconds:
        found["server/arrivals_per_second"] = num_new / (now.seconds - before.seconds)
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
