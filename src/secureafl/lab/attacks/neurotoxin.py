"""Neurotoxin: hide the backdoor in coordinates that honest clients hardly move, where it lasts.

Z. Zhang, A. Panda, L. Song, Y. Yang, M. W. Mahoney, J. E. Gonzalez, K. Ramchandran, P. Mittal, "Neurotoxin: Durable
Backdoors in Federated Learning", ICML 2022.

    every step's gradient is set to 0 on the ceil((1 - keep_ratio) d) coordinates with the largest |reference|

over all layers together, ties by index. The reference is the mean of the honest clients' last updates, or, as in the
published code, a gradient on clean data: the sender's honest one. No momentum and no weight decay. The projection of
PGD can be added.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from secureafl.lab.attacks.attack import Batch, Stateless, View, benign_updates, may_diverge, require_classes
from secureafl.lab.attacks.backdoor import BackdoorSettings, poisoned_gradient, project, train
from secureafl.lab.attacks.pgd import radius_sent
from secureafl.types import Vector


def _renamed(reference: object) -> object:
    """What was `uploads` is `updates`."""
    return "updates" if reference == "uploads" else reference


class NeurotoxinSettings(BackdoorSettings):
    """Neurotoxin's settings."""

    num_steps: int = Field(5, ge=1)
    """Local steps E. [A]"""
    keep_ratio: float = Field(0.95, ge=0.0, le=1.0)
    """Share of coordinates the backdoor may use; 1 for all. [C: 0.55 to 0.99]"""
    reference: Annotated[Literal["updates", "clean"], BeforeValidator(_renamed)] = "updates"
    """What tells the coordinates honest clients move: the mean of their last updates, or a clean gradient. [A]"""
    radius_factor: float | None = Field(None, gt=0.0)
    """Also keep the update within this many median honest lengths, as PGD does; None for not. [A]"""


def quiet_mask(reference: Vector, keep_ratio: float) -> npt.NDArray[np.bool_]:
    """(d,): False on the ceil((1 - keep_ratio) d) coordinates with the largest |reference|, ties by index."""
    share = 1 - Fraction(str(keep_ratio))  # 1 - 0.95 in floats is a little more than 1/20, and ceil would see it
    loud = np.argsort(-np.abs(reference), kind="stable")[: math.ceil(share * len(reference))]
    mask = np.ones(len(reference), np.bool_)
    mask[loud] = False
    return mask


class Neurotoxin(Stateless):
    """A backdoor in quiet coordinates."""

    def __init__(self, settings: NeurotoxinSettings = NeurotoxinSettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "neurotoxin")
        mask = quiet_mask(self._reference(view), self.settings.keep_ratio)
        plain = poisoned_gradient(view, self.settings.poison_fraction)

        def masked(params: Vector, batch: Batch) -> Vector:
            return np.where(mask, plain(params, batch), np.float32(0.0))

        factor = self.settings.radius_factor
        if factor is None:
            return train(view, self.settings, masked)
        limit = radius_sent(view, None, factor)
        return train(view, self.settings, masked, lambda sent, _: project(sent, limit))

    def _reference(self, view: View) -> Vector:
        updates = benign_updates(view)
        if self.settings.reference == "clean" or len(updates) == 0:
            return view.gradient
        return np.asarray(updates.mean(axis=0, dtype=np.float64), np.float32)
