"""Evaluation beside training: the newest model, on a thread of its own, never in the way of an arrival."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from secureafl.layout import Layout
from secureafl.types import Model, NamedArrays

Evaluate: TypeAlias = Callable[[NamedArrays], Mapping[str, float]]
"""Scores a model given as named arrays: {"accuracy": 0.91, …}."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How one version did, and when in the run it stood."""

    version: int
    seconds: float
    metrics: Mapping[str, float]


class Evaluator:
    """Runs the user's `evaluate` for one model at a time and keeps what came out.

    An error in it is handed to `on_error`; training goes on.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        layout: Layout,
        on_result: Callable[[Evaluation], None] = lambda done: None,
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._evaluate = evaluate
        self._layout = layout
        self._on_result = on_result
        self._on_error = on_error
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluate")
        self._running: Future[None] | None = None
        self._lock = threading.Lock()
        self._results: list[Evaluation] = []
        self._best: dict[str, float] = {}

    @property
    def results(self) -> list[Evaluation]:
        """Evaluations so far, oldest first."""
        with self._lock:
            return list(self._results)

    def best(self, metric: str) -> float:
        """The largest value of this metric so far."""
        return self._best.get(metric, -math.inf)

    def offer(self, model: Model, seconds: float) -> None:
        """Evaluate this model now, unless another evaluation is still under way."""
        if self._running is None or self._running.done():
            self._running = self._executor.submit(self._work, model, seconds)

    def finish(self, model: Model, seconds: float) -> list[Evaluation]:
        """Wait for what is under way, evaluate the last model, and return everything."""
        if self._running is not None:
            self._running.result()  # its own errors went to `on_error`
        if not self._results or self._results[-1].version != model.version:
            self._work(model, seconds)
        self._executor.shutdown()
        return self.results

    def _work(self, model: Model, seconds: float) -> None:
        try:
            metrics = {key: float(value) for key, value in self._evaluate(self._layout.unflatten(model.params)).items()}
        except Exception as error:  # the user's code: it must not cost what was learned
            self._on_error(error)
            return
        done = Evaluation(model.version, seconds, metrics)
        with self._lock:
            self._results.append(done)
            for name, value in metrics.items():
                self._best[name] = max(value, self.best(name))
        self._on_result(done)
