"""Label flip: learn honestly from wrong labels.

V. Tolpegin, S. Truex, M. E. Gursoy, L. Liu, "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020.

    y -> z - 1 - y        for z classes, on all data of a malicious client

The original flips chosen pairs of classes; mirroring all of them is what later work, and the paper, evaluate. Flipping
twice gives the labels back. There is nothing to flip in a regression.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from secureafl.lab.arrays import Labels
from secureafl.lab.attacks.attack import Stateless, View, require_classes
from secureafl.settings import Settings
from secureafl.types import Vector


class LabelFlipSettings(Settings):
    """Label flip has nothing to set."""


def flip(y: Labels, num_classes: int) -> npt.NDArray[np.int64]:
    """The labels, mirrored."""
    return np.asarray(num_classes - 1 - y, np.int64)


class LabelFlip(Stateless):
    """The gradient on flipped labels."""

    def __init__(self, settings: LabelFlipSettings = LabelFlipSettings()) -> None:
        self.settings = settings

    def update(self, view: View) -> Vector:
        x, y = view.batch
        num_classes = require_classes(view.task, "label_flip")
        return view.task.gradient(view.base.params, x, flip(y, num_classes))
