"""Clients that train for several steps and send how far they came, as those of Flower and NVFlare do.

Whatever asks a task for a gradient, an attack on marked images say, gets what local training on these samples leads to:

    x_0 = w ;  x_{s+1} = x_s - local_lr * gradient(x_s, part s of the samples) ;  sent: w - x_S

which points uphill, like a gradient, and has the length of the way.
"""

from __future__ import annotations

import numpy as np

from secureafl.lab.arrays import Images, Indices, Labels
from secureafl.lab.attacks.attack import TaskView
from secureafl.layout import Layout
from secureafl.types import Vector


class LocalTraining:
    """A task whose gradients are the way of so many local steps."""

    def __init__(self, task: TaskView, num_steps: int, local_lr: float) -> None:
        self._task = task
        self._num_steps = num_steps
        self._local_lr = np.float32(local_lr)

    @property
    def num_classes(self) -> int | None:
        return self._task.num_classes

    @property
    def layout(self) -> Layout:
        return self._task.layout

    def gradient(self, params: Vector, x: Images, y: Labels) -> Vector:
        """(d,) start minus end of one pass over these samples, in as many parts as there are steps."""
        here = params.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # a run may diverge
            for part in np.array_split(np.arange(len(y)), self._num_steps):
                if len(part):
                    here -= self._local_lr * self._task.gradient(here, x[part], y[part])
            return np.asarray(params - here, np.float32)


def repeated(indices: Indices, num_samples: int) -> Indices:
    """As many samples as a client trains on, from few: the same ones over and over."""
    return np.resize(indices, max(num_samples, len(indices)))
