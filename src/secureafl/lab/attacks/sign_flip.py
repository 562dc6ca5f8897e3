"""Sign flip: point the other way.

M. Fang, X. Cao, J. Jia, N. Z. Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX
Security 2020, from which only the reversed direction is taken.

    m = -scale g
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View
from secureafl.settings import Settings
from secureafl.types import Vector


class SignFlipSettings(Settings):
    """Sign flip's settings."""

    scale: float = Field(1.0, gt=0.0)
    """How many times as long as the honest gradient. [P: 1]"""


class SignFlip(Stateless):
    """The honest gradient, reversed."""

    def __init__(self, settings: SignFlipSettings = SignFlipSettings()) -> None:
        self.settings = settings

    def update(self, view: View) -> Vector:
        return np.asarray(-np.float32(self.settings.scale) * view.gradient)
