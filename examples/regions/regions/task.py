"""Logistic regression on three clouds of points, in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Weights = dict[str, Floats]

NUM_FEATURES, NUM_CLASSES = 20, 3
CENTRES = np.random.default_rng(0).normal(scale=0.7, size=(NUM_CLASSES, NUM_FEATURES))


def initial_weights() -> Weights:
    return {
        "weight": np.zeros((NUM_FEATURES, NUM_CLASSES), np.float32),
        "bias": np.zeros(NUM_CLASSES, np.float32),
    }


def load_data(partition_id: int, num_examples: int = 200) -> tuple[Floats, npt.NDArray[np.int64]]:
    """One client's points and classes; the server tests on partition -1."""
    rng = np.random.default_rng([1, partition_id + 1])
    classes = rng.integers(NUM_CLASSES, size=num_examples)
    points = CENTRES[classes] + rng.normal(size=(num_examples, NUM_FEATURES))
    return points.astype(np.float32), classes


def train(weights: Weights, points: Floats, classes: npt.NDArray[np.int64], *, num_steps: int, lr: float) -> Weights:
    """Gradient steps on the cross-entropy."""
    weight, bias = weights["weight"].copy(), weights["bias"].copy()
    for _ in range(num_steps):
        error = _probabilities(points @ weight + bias)
        error[np.arange(len(classes)), classes] -= 1.0
        weight -= lr * points.T @ error / len(classes)
        bias -= lr * error.mean(axis=0)
    return {"weight": weight, "bias": bias}


def accuracy(weights: Weights) -> float:
    """Share of the server's test points that fall into the right class."""
    points, classes = load_data(-1, num_examples=2000)
    return float(np.mean((points @ weights["weight"] + weights["bias"]).argmax(axis=1) == classes))


def _probabilities(scores: Floats) -> Floats:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float32)
