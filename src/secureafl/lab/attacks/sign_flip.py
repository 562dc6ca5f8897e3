"""Sign flip: point the other way.

M. Fang, X. Cao, J. Jia, N. Z. Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", USENIX
Security 2020, from which only the reversed direction is taken.

    m = -g
"""

from __future__ import annotations

import numpy as np

from secureafl.lab.attacks.base import Stateless, View
from secureafl.settings import Settings
from secureafl.types import Vector


class SignFlipSettings(Settings):
    """Sign flip has nothing to set."""


class SignFlip(Stateless):
    """The honest gradient, negated."""

    def __init__(self, settings: SignFlipSettings = SignFlipSettings()) -> None:
        self.settings = settings

    def upload(self, view: View) -> Vector:
        return np.negative(view.gradient)
