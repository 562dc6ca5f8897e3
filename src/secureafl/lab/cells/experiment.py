"""Run one cell to its end: evaluate on the way, save what is needed to go on, leave a small result behind.

A cell owns one directory:

    result.json            settings, telemetry, digests, timing and provenance; there when the cell is finished
    curves.parquet         round, metric, value: every evaluation
    arrivals.parquet       one row per arrival: who, for which version, what became of it
    snapshot.safetensors   the whole simulation, while the cell is unfinished

Killed at any moment, the next `run_cell` goes on from the last snapshot and ends with the same bits.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from pydantic import Field
from rich.console import Console

from secureafl.files import load_state, locked, remove_leftovers, save_state
from secureafl.lab.cells.build import Laboratory, build
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.earlier_names import RESULT, read_result
from secureafl.lab.cells.evaluate import evaluate
from secureafl.lab.cells.results import CellEvaluation, finish, provenance
from secureafl.lab.simulation.task import make_deterministic
from secureafl.server.live.evaluation import Evaluation
from secureafl.server.live.telemetry import Standing, Telemetry, num_excluded
from secureafl.server.report.sinks import Feed
from secureafl.settings import Settings

SNAPSHOT = "snapshot.safetensors"


class RunSettings(Settings):
    """How a cell is run; nothing but the last bits of what comes out depends on it."""

    device: str = "cpu"
    """Where gradients are computed, in PyTorch's words: `cpu`, `cuda`, `cuda:1`. Equal bits come from equal devices."""

    snapshot_rounds: int = Field(2000, ge=1)
    """Rounds between two snapshots. One of SecureAFL with 50 clients and the paper's CNN takes 250 MB."""
    snapshot_seconds: float = Field(600.0, gt=0.0)
    """Time between two snapshots, for cells whose rounds are slow."""
    record: Path | None = None
    """Folder for a journal of the run, which `secureafl audit`, `replay` and `eject` read. A recorded cell that was
    killed begins anew, with an empty folder."""
    sinks: tuple[str, ...] = ()
    """Where figures are sent at each evaluation: `tensorboard:DIR`, `mlflow:URI`, `wandb:DIR`."""


@dataclass(frozen=True, slots=True)
class CellStatus:
    """How far a cell is."""

    done: int
    rounds: int
    seconds: float
    """Spent in this session."""
    resumed_at: int
    latest: Mapping[str, float] = field(default_factory=dict)
    """The newest evaluation."""

    @property
    def rate(self) -> float:
        """Rounds per second in this session."""
        return (self.done - self.resumed_at) / self.seconds if self.seconds > 0.0 else 0.0


Progress: TypeAlias = Callable[[CellStatus], None]


def run_cell(
    settings: CellSettings,
    out_dir: Path,
    progress: Progress | None = None,
    run: RunSettings = RunSettings(),
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """The cell's result: read if it is there, computed from the last snapshot or from the beginning if not."""
    directory = out_dir / settings.cell_id()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        if not (directory / RESULT).exists():
            remove_leftovers(directory)
            make_deterministic()
            with contextlib.closing(_Run(settings, directory, run, clock)) as session:
                session.to_the_end(progress or (lambda status: None))
        return read_result(directory)


class _Run:
    """One session of work on one cell."""

    def __init__(self, settings: CellSettings, directory: Path, run: RunSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._directory = directory
        self._run = run
        self._clock = clock
        self._origin = {**provenance(), "device": run.device}
        self._lab: Laboratory = build(settings, record=run.record, device=run.device)
        self._evaluations: list[CellEvaluation] = []
        if (directory / SNAPSHOT).exists() and run.record is None:
            self._resume()
        self._resumed_at = self._done
        self._telemetry = Telemetry(lambda: self._lab.simulation.stopwatch.total)
        self._feeds = [self._feed(sink) for sink in run.sinks]
        if self._feeds:
            self._lab.simulation.observer = self._telemetry

    @property
    def _done(self) -> int:
        return self._lab.simulation.machine.model.version

    def to_the_end(self, progress: Progress) -> None:
        began = saved = self._clock()
        if not self._evaluations:
            self._evaluate()
        saved_at = self._done
        while self._done < self._settings.rounds:
            self._lab.simulation.step()
            done, now = self._done, self._clock()
            if done % self._settings.evaluate_every == 0 or done == self._settings.rounds:
                self._evaluate()
            due = done - saved_at >= self._run.snapshot_rounds or now - saved >= self._run.snapshot_seconds
            if due and done < self._settings.rounds and self._lab.recorder is None:
                self._save()
                saved, saved_at = self._clock(), done
            latest = self._evaluations[-1].metrics
            progress(CellStatus(done, self._settings.rounds, now - began, self._resumed_at, latest))
        if self._lab.recorder is not None:
            self._lab.recorder.close()
        finish(self._lab, self._evaluations, self._directory, resumed_at=self._resumed_at, origin=self._origin)
        (self._directory / SNAPSHOT).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the sinks."""
        for feed in self._feeds:
            feed.close()

    def _evaluate(self) -> None:
        found = CellEvaluation(self._done, evaluate(self._lab))
        self._evaluations.append(found)
        if self._feeds:
            machine = self._lab.simulation.machine
            self._telemetry.evaluated(Evaluation(found.round, self._lab.simulation.stopwatch.total, found.metrics))
            self._telemetry.stand(Standing(known=machine.num_clients, excluded=num_excluded(machine.defense)))
        for feed in self._feeds:
            feed.write()

    def _feed(self, sink: str) -> Feed:
        def say(line: str) -> None:
            Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)

        return Feed(
            sink,
            self._telemetry,
            name=self._settings.cell_id(),
            facts=self._settings.complete(),
            say=say,
            clock=self._clock,
        )

    def _save(self) -> None:
        rows = [[evaluation.round, dict(evaluation.metrics)] for evaluation in self._evaluations]
        text = np.frombuffer(json.dumps(rows).encode(), np.uint8).copy()  # Python's JSON keeps NaN, inf and every bit
        save_state(self._directory / SNAPSHOT, {**self._lab.simulation.state_dict(), "evaluations": text})

    def _resume(self) -> None:
        state = load_state(self._directory / SNAPSHOT)
        rows = json.loads(np.asarray(state.pop("evaluations"), np.uint8).tobytes())
        self._evaluations = [CellEvaluation(number, metrics) for number, metrics in rows]
        self._lab.simulation.load_state_dict(state)
