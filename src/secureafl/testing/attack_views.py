"""A tiny federation for attacks: a two-layer "model" on 4 x 4 images with a gradient one can work out by hand.

The loss of one image x (16 pixels) with label y is |w - s(x, y)|^2 / 2 for a fixed linear s, so the gradient of the
mean loss is w - mean s: quadratic, exact, and different for every image and label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from secureafl.defenses import SecureAFL
from secureafl.lab.arrays import Images, Labels
from secureafl.lab.attacks.attack import Batch, View
from secureafl.lab.data import Trigger
from secureafl.layout import Layout
from secureafl.types import ClientId, Model, Vector

NUM_CLASSES = 5
HIDDEN = 6


class QuadraticTask:
    """Hidden layer (6, 16), final layer (5, 6) with bias (5,): d = 131."""

    def __init__(self, num_classes: int | None = NUM_CLASSES) -> None:
        self.num_classes = num_classes
        self.layout = Layout.of(
            {
                "hidden.weight": np.zeros((HIDDEN, 16), np.float32),
                "final.weight": np.zeros((NUM_CLASSES, HIDDEN), np.float32),
                "final.bias": np.zeros(NUM_CLASSES, np.float32),
            }
        )
        self.dim = self.layout.dim
        rng = np.random.default_rng(7)
        self.pixel_map = rng.normal(size=(16, self.dim))
        self.label_map = rng.normal(size=(NUM_CLASSES, self.dim))

    def gradient(self, params: Vector, x: Images, y: Labels) -> Vector:
        """The gradient of the mean loss."""
        pixels = (x / 255.0 if x.dtype == np.uint8 else x).reshape(len(x), -1).astype(np.float64)
        pulls = pixels @ self.pixel_map + self.label_map[y.astype(np.int64)]
        return np.asarray(params - pulls.mean(axis=0), np.float32)


def batch(seed: int = 0, size: int = 8) -> Batch:
    """A mini-batch of noise."""
    rng = np.random.default_rng([seed, 99])
    return Batch(rng.integers(0, 256, (size, 1, 4, 4), np.uint8), rng.integers(0, NUM_CLASSES, size))


def draws(first: int = 1) -> Callable[[], Batch]:
    """A client's further mini-batches, the same ones in every run."""
    seeds = iter(range(first, 1000))
    return lambda: batch(next(seeds))


def trigger() -> Trigger:
    """The mark of a backdoor."""
    return Trigger.draw(1, np.random.default_rng(5))


def benign_rows(dim: int, num: int = 6, seed: int = 3) -> dict[ClientId, Vector]:
    """What honest clients sent last."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=dim)
    return {ClientId(k): (common + 0.5 * rng.normal(size=dim)).astype(np.float32) for k in range(num)}


def view(task: QuadraticTask | None = None, **changes: Any) -> View:
    """Client 8 of ten updates; 7, 8 and 9 are malicious. `gradient` fits base and batch unless it is given."""
    task = task or QuadraticTask()
    base = changes.pop("base", Model(3, np.random.default_rng(11).normal(size=task.dim).astype(np.float32)))
    here = changes.pop("batch", batch())
    updates: Mapping[ClientId, Vector] = changes.pop("updates", benign_rows(task.dim))
    gradient: Vector = changes.pop("gradient", task.gradient(base.params, *here))
    made = View(
        round=5,
        client=ClientId(8),
        base=base,
        model=Model(5, base.params),
        server_lr=0.01,
        num_clients=10,
        rng=np.random.default_rng(1),
        batch=here,
        task=task,
        updates=updates,
        malicious=frozenset(map(ClientId, (7, 8, 9))),
        shadow=SecureAFL(task.dim),
        trigger=trigger(),
        target_label=0,
        honest_gradient=lambda: gradient,
        draw_batch=draws(),
    )
    return replace(made, **changes)
