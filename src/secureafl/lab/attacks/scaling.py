"""Scaling: train a backdoor and send it many times as long, to replace the model by one's own.

E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin, V. Shmatikov, "How To Backdoor Federated Learning", AISTATS 2020.

    m = gamma (w_b - x) / eta

Averaging over n clients made gamma near n replace the model exactly. An asynchronous step has full weight already, so
that gamma > 1 overshoots; gamma = n is kept as the default because it is what others evaluate.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View, may_diverge, require_classes
from secureafl.lab.attacks.backdoor import BackdoorSettings, poisoned_gradient, train
from secureafl.types import Vector


class ScalingSettings(BackdoorSettings):
    """Scaling's settings."""

    scale: float | None = Field(None, gt=0.0)
    """Factor gamma on the update; None for the number of clients. [C]"""


def scale_of(view: View, scale: float | None) -> np.float32:
    """gamma, by default the number of clients."""
    return np.float32(view.num_clients if scale is None else scale)


class Scaling(Stateless):
    """A backdoored model, amplified."""

    def __init__(self, settings: ScalingSettings = ScalingSettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "scaling")
        sent = train(view, self.settings, poisoned_gradient(view, self.settings.poison_fraction))
        return np.asarray(scale_of(view, self.settings.scale) * sent)
