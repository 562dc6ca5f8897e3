"""Trusted data at the server, as the defenses that need it see them: a callable, never a data set or a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from secureafl.errors import SettingsError
from secureafl.types import Array, Model, StateDict, Vector

Reference: TypeAlias = Callable[[Model], Vector]
"""The gradient on the server's own trusted data at a model. A function of the model alone, or replays differ."""


class Score(NamedTuple):
    """How a model does on the server's trusted data."""

    loss: float
    """Mean loss."""
    entropy: float
    """Mean entropy of the predicted distribution, in nats."""


Scorer: TypeAlias = Callable[[Vector], Score]
"""Scores parameters on trusted data. A function of the parameters alone."""


class CachedReference:
    """The trusted gradient, computed anew once it has served `lifetime` arrivals."""

    def __init__(self, reference: Reference, dim: int, lifetime: int) -> None:
        self._reference = reference
        self._dim = dim
        self._lifetime = lifetime
        self._gradient: Vector = np.zeros(dim, np.float32)
        self._num_served = lifetime  # none yet: the first arrival computes it

    def at(self, model: Model) -> Vector:
        """The gradient to judge the present arrival by."""
        if self._num_served >= self._lifetime:
            gradient = np.asarray(self._reference(model), np.float32)
            if gradient.shape != (self._dim,):
                raise SettingsError(f"reference(model) returned shape {gradient.shape}; the model needs ({self._dim},)")
            self._gradient, self._num_served = gradient.copy(), 0
        self._num_served += 1
        return self._gradient

    def state_dict(self) -> StateDict:
        return {"gradient": self._gradient.copy(), "num_served": np.array(self._num_served, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._gradient = np.array(state["gradient"], np.float32)
        self._num_served = int(np.asarray(state["num_served"], np.int64))
