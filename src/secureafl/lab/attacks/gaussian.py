"""Gaussian: send noise.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent", NeurIPS 2017.

    m ~ N(0, std^2 I)

With the published std = 200 and a server rate of 0.01, one accepted update moves every weight by about 2.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View
from secureafl.settings import Settings
from secureafl.types import Vector


class GaussianSettings(Settings):
    """The Gaussian attack's settings."""

    std: float = Field(200.0, gt=0.0)
    """Standard deviation of every coordinate. [P]"""


class Gaussian(Stateless):
    """Noise that knows nothing of the gradient."""

    def __init__(self, settings: GaussianSettings = GaussianSettings()) -> None:
        self.settings = settings

    def update(self, view: View) -> Vector:
        noise = view.rng.standard_normal(len(view.base.params), dtype=np.float32)
        return np.asarray(noise * np.float32(self.settings.std))
