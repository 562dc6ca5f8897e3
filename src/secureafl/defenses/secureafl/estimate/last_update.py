"""An idle client would send what it sent last.

estimate_k = g_k, clipped to clip_norm
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.stages import Estimator
from secureafl.history import DELTA, Float, History, Precision
from secureafl.types import Array, ClientId, StateDict, Update, Vector


class LastUpdate(Estimator):
    """Keeps each client's last remembered update and the model it was made for.

    clip_norm  longest estimate
    precision, path, threads  how the history is kept: see `History`
    """

    def __init__(
        self,
        dim: int,
        clip_norm: float = 50.0,
        *,
        precision: Precision = "float32",
        path: Path | None = None,
        threads: int | None = None,
    ) -> None:
        self.history = History(dim, 0, precision=precision, path=path, threads=threads)
        self._clip_norm = clip_norm

    def weights(self, params: Vector) -> Float:
        weights = np.zeros((len(self.history), self.history.num_rows))
        weights[:, DELTA] = clipped(np.ones(len(self.history)), self.history.lengths(), self._clip_norm)
        return weights

    def weights_at(self, params: Vector, client: ClientId | None = None) -> Float:
        weights = self.weights(params)
        return weights if client is None else weights[self.history.slot(client)][None]

    def learn(self, update: Update, delta: Vector, change: kernels.Change | None, *, accepted: bool) -> None:
        self.history.remember(update.client, delta, update.base.params, change=change)

    def state_dict(self) -> StateDict:
        return scoped("history", self.history.state_dict())

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.history.load_state_dict(unscoped("history", state))


def clipped(weights: Float, lengths: Float, limit: float) -> Float:
    """The weights (n,) or (n, r), smaller where what they lead to is longer than `limit`; lengths (n,)."""
    over = lengths > limit
    shares = limit / lengths[over]
    weights[over] *= shares if weights.ndim == 1 else shares[:, None]
    return weights
