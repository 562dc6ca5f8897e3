"""The server's own clean samples, as the two functions that defenses ask for: a gradient and a score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secureafl.defenses import Reference, Score, Scorer
from secureafl.lab.arrays import Indices
from secureafl.lab.attacks.attack import Batch, TaskView
from secureafl.lab.simulation.task import Task
from secureafl.types import Model, Vector


def draw_trusted(shards: Sequence[Indices], num_trusted: int, rng: np.random.Generator) -> Indices:
    """Samples drawn uniformly from the union of all clients' data."""
    union = np.concatenate([np.asarray(shard, np.int64) for shard in shards])
    return np.sort(rng.choice(union, min(num_trusted, len(union)), replace=False))


def make_reference(task: TaskView, batch: Batch) -> Reference:
    """The gradient on trusted data, for Zeno++ and AFLGuard.

    Computed only when the model moved: versions that hold equal parameters share one array.
    """
    last: tuple[Vector, Vector] | None = None

    def reference(model: Model) -> Vector:
        nonlocal last
        if last is None or model.params is not last[0]:
            last = model.params, task.gradient(model.params, batch.x, batch.y)
        return last[1]

    return reference


def make_scorer(task: Task, batch: Batch) -> Scorer:
    """Loss and predictive entropy on trusted data, for Sageflow. A regression has no entropy: it scores 0."""

    def score(params: Vector) -> Score:
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = task.predict(params, batch.x).astype(np.float64)
            if task.num_classes is None:
                return Score(loss=float(np.mean((outputs - batch.y) ** 2)), entropy=0.0)
            log_probabilities = outputs - _log_sum_exp(outputs)
            loss = -float(np.mean(log_probabilities[np.arange(len(batch.y)), batch.y.astype(np.int64)]))
            weighted = np.where(np.isneginf(log_probabilities), 0.0, np.exp(log_probabilities) * log_probabilities)
            return Score(loss=loss, entropy=-float(np.mean(np.sum(weighted, axis=1))))

    return score


def _log_sum_exp(outputs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    largest = outputs.max(axis=1, keepdims=True)
    return np.asarray(largest + np.log(np.exp(outputs - largest).sum(axis=1, keepdims=True)))
