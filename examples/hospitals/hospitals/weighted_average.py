"""Plain weighted averaging, as it is usually done: an update moves the model by its client's weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Verdict, refuse


class WeightedAverageSettings(Settings):
    """Who weighs what."""

    weights: dict[str, float] = Field(default_factory=dict)
    """By client; 1 for those not named."""


class WeightedAverage:
    """Accepts everything that is a finite vector."""

    def __init__(self, dim: int, settings: WeightedAverageSettings = WeightedAverageSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._weights: dict[ClientId, float] = {}

    def meet(self, client: ClientId, name: str) -> None:
        self._weights[client] = self.settings.weights.get(name, 1.0)

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        weight = self._weights[update.client]
        return Verdict(True, Reason.ACCEPTED, np.float32(weight) * update.delta, {"weight": weight})

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load: clients are met again after a restart."""
