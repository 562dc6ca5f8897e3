"""FedBuff: average the last few updates, each clipped and weighed by its staleness, and step once per buffer.

J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022; clipping after Z. Sun,
P. Kairouz, A. T. Suresh and H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019.

    g_i <- g_i min(1, clip_norm / |g_i|)
    when K updates came:  step along  scale (1/K) sum_i g_i / (1 + staleness_i)^exponent,  and empty the buffer

The published rule has scale 1. As it moves once for K arrivals, a learning rate that suits AsyncSGD makes it K times
slower; `scale` sets that right, and is FedBuff's own server learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl.defenses.base import norm, staleness
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Vector, Verdict, refuse


class FedBuffSettings(Settings):
    """FedBuff's settings. The published ones are marked [O], ours [A]."""

    buffer_size: int = Field(10, ge=1)
    """Updates K in a step. [O: 10]"""
    clip_norm: float | None = Field(3.0, gt=0.0)
    """Updates are shortened to this length; None leaves them as they are. [A]"""
    staleness_exponent: float = Field(0.5, ge=0.0)
    """How fast an update's weight falls with its staleness; 0 weighs all alike. [O: 0.5]"""
    scale: float = Field(1.0, gt=0.0)
    """Factor on the buffer's average, beside the server's learning rate. [O: free]"""


class FedBuff:
    """Holds one running sum."""

    def __init__(self, dim: int, settings: FedBuffSettings = FedBuffSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._sum: Vector = np.zeros(dim, np.float32)
        self._count = 0

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        length, age = norm(update.delta), staleness(update, model)
        longest = self.settings.clip_norm
        share = 1.0 if longest is None or length <= longest else longest / length
        weight = (1.0 + age) ** -self.settings.staleness_exponent
        self._sum += np.float32(share * weight) * update.delta
        self._count += 1
        evidence = {"norm": length, "staleness": float(age), "weight": weight}
        if share < 1.0:
            evidence["shortened_to"] = share
        if self._count < self.settings.buffer_size:
            return Verdict(True, Reason.BUFFERED, None, evidence)
        direction = np.float32(self.settings.scale / self._count) * self._sum
        self._sum, self._count = np.zeros(self._dim, np.float32), 0
        return Verdict(True, Reason.ACCEPTED, direction, evidence)

    def state_dict(self) -> StateDict:
        return {"sum": self._sum.copy(), "count": np.array(self._count, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._sum = np.array(state["sum"], np.float32)
        self._count = int(np.asarray(state["count"], np.int64))
