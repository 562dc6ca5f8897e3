"""What the backdoor attacks share: marked mini-batches, and local training sent as one gradient.

A share r of each mini-batch gets the trigger and the target label. E local steps at rate eta_a lead from the base model
w_b to x, and the server is sent the pseudo-gradient

    m = (w_b - x) / eta        so that accepting it at rate eta moves w_b to x

m itself is what is kept while training, x = w_b - eta m: a single step at eta_a = eta then gives back the gradient
unrounded.

Shapes: d = parameters, B = images in a mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Batch, TriggerView, View, length
from secureafl.lab.data.trigger import as_floats
from secureafl.settings import Settings
from secureafl.types import Vector


class BackdoorSettings(Settings):
    """How a backdoor is trained."""

    poison_fraction: float = Field(0.5, ge=0.0, le=1.0)
    """Share of each mini-batch that is marked and relabelled: r. [A: published code uses 0.08 to 1]"""
    num_steps: int = Field(1, ge=1)
    """Local steps E. [A]"""
    local_lr: float | None = Field(None, gt=0.0)
    """Rate of the local steps; None for the server's. [A]"""


def poison(batch: Batch, trigger: TriggerView, target_label: int, fraction: float) -> Batch:
    """The batch with round(fraction B) images marked and relabelled, evenly spaced in case the batch is sorted."""
    count = round(fraction * len(batch.y))
    if count == 0:
        return batch
    chosen = np.arange(count) * len(batch.y) // count
    x, y = as_floats(batch.x), batch.y.copy()
    x[chosen] = trigger.apply(batch.x[chosen])
    y[chosen] = target_label
    return Batch(x, y)


def project(vector: Vector, radius: float) -> Vector:
    """The nearest point of the ball around zero."""
    size = length(vector)
    if size <= radius:
        return vector
    inside = np.float64(radius) * (1.0 - 1e-7)  # so that rounding to float32 does not lead out again
    return np.asarray(vector * (inside / size), np.float32)


def unconstrained(sent: Vector, step: int) -> Vector:
    """Leave the pseudo-gradient as it is."""
    return sent


def train(
    view: View,
    settings: BackdoorSettings,
    gradient: Callable[[Vector, Batch], Vector],
    constrain: Callable[[Vector, int], Vector] = unconstrained,
) -> Vector:
    """The pseudo-gradient of `num_steps` local steps from the base model.

    gradient   what each step descends, given the local parameters and a mini-batch
    constrain  applied to the pseudo-gradient after each step, given also the step's number, 0, 1, …
    """
    base, server_lr = view.base.params, np.float32(view.server_lr)
    rate = np.float32(1.0 if settings.local_lr is None else settings.local_lr / view.server_lr)
    sent = np.zeros_like(base)
    for step in range(settings.num_steps):
        batch = view.batch if step == 0 else view.draw_batch()
        sent = constrain(sent + rate * gradient(base - server_lr * sent, batch), step)
    return sent


def poisoned_gradient(
    view: View, fraction: float, trigger: TriggerView | None = None
) -> Callable[[Vector, Batch], Vector]:
    """The gradient on marked mini-batches; with the view's own trigger unless another is given."""
    mark = view.trigger if trigger is None else trigger

    def gradient(params: Vector, batch: Batch) -> Vector:
        x, y = poison(batch, mark, view.target_label, fraction)
        return view.task.gradient(params, x, y)

    return gradient
