"""An idle client would send what it sent last, and what its curvature adds for how far the model has moved since.

    estimate_k = g_k + B_k (w_now - w_k), clipped to clip_norm     Eq. (1) of Sec. 4.3, B_k by Algorithm 2

How far the Hessian product is followed is a choice, because mini-batch noise fills the pairs with false curvature:
`raw` takes it as it is, `bounded` never lets it be longer than a share of the update it corrects, and `calibrated`
scales the bounded one by how well it predicted real updates so far (decision 0008).

Shapes: n = known clients, d = parameters, r = rows per client.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.estimate.gap_products import GapProducts
from secureafl.defenses.secureafl.estimate.last_update import clipped
from secureafl.defenses.secureafl.stages import Estimator
from secureafl.history import BASE, DELTA, Corrections, Float, History, Precision
from secureafl.types import Array, ClientId, StateDict, Update, Vector

MAX_WEIGHT = 1e30
"""Largest factor on a remembered row: its product with a number of the row still fits into float32."""

Correction = Literal["raw", "bounded", "calibrated"]


class HessianProduct(Estimator):
    """Keeps pairs of changes per client beside its last update, and carries their products from step to step.

    server_lr         the server's learning rate, which the carried products follow
    memory            pairs per client: the paper's epsilon
    correction        how far the product is followed
    bound             longest correction, as a multiple of the client's last update
    decay             of the evidence for `calibrated`, from one arrival to the next
    clip_norm         longest estimate: the paper's G
    refresh_interval  steps after which carried products are computed exactly again
    """

    follows = True

    def __init__(
        self,
        dim: int,
        server_lr: float,
        *,
        memory: int = 3,
        correction: Correction = "raw",
        bound: float = 0.5,
        decay: float = 0.99,
        clip_norm: float = 50.0,
        min_curvature: float = 1e-8,
        strict: bool = True,
        refresh_interval: int = 512,
        precision: Precision = "float32",
        path: Path | None = None,
        threads: int | None = None,
    ) -> None:
        self.server_lr = server_lr
        self.history = History(
            dim,
            memory,
            min_curvature=min_curvature,
            strict=strict,
            precision=precision,
            path=path,
            threads=threads,
        )
        self.gaps = GapProducts(self.history, refresh_interval)
        self._correction = correction
        self._bound = bound
        self._decay = decay
        self._clip_norm = clip_norm
        self._agreement = 0.0  # decayed sum of <real change, predicted change>
        self._prediction = 0.0  # decayed sum of |predicted change|^2

    @property
    def calibration(self) -> float:
        """Share of the predicted change that real arrivals bore out, between 0 and 1; 0 before any evidence."""
        return min(1.0, max(0.0, self._agreement / self._prediction)) if self._prediction > 0.0 else 0.0

    def weights(self, params: Vector) -> Float:
        return self._weights(self.history.corrections(params, self.gaps.at(params)))

    def weights_at(self, params: Vector, client: ClientId | None = None) -> Float:
        if client is None:
            return self._weights(self.history.corrections(params))
        return self._weights(self.history.correction(client, params))

    def advance(self, step: kernels.Step) -> None:
        self.gaps.advance(step)

    def learn(self, update: Update, delta: Vector, change: kernels.Change | None, *, accepted: bool) -> None:
        along = None
        if change is not None and self._correction == "calibrated" and accepted:
            along = self._calibrate(update.client, change)
        remembered = self.history.remember(update.client, delta, update.base.params, self.gaps.params, change)
        self.gaps.replace(self.history.slot(update.client), remembered, along)

    def evidence(self) -> Mapping[str, float]:
        return {"calibration": self.calibration} if self._correction == "calibrated" else {}

    def state_dict(self) -> StateDict:
        return {
            **scoped("history", self.history.state_dict()),
            **scoped("gaps", self.gaps.state_dict()),
            "calibration": np.array([self._agreement, self._prediction]),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.history.load_state_dict(unscoped("history", state))
        self.gaps.load_state_dict(unscoped("gaps", state))
        self._agreement, self._prediction = np.asarray(state["calibration"], np.float64).tolist()

    def _weights(self, corrections: Corrections) -> Float:
        """(n, r): what each client's rows weigh in its estimate g + correction, clipped to `clip_norm`."""
        weights = self._trusted(corrections)
        if self._correction == "calibrated":
            weights = weights * self.calibration
        weights[:, DELTA] += 1.0
        return clipped(weights, _lengths(weights, corrections.moments), self._clip_norm)

    def _trusted(self, corrections: Corrections) -> Float:
        """The Hessian product as far as we follow it: (n, r) weights of the correction alone."""
        lengths = _lengths(corrections.weights, corrections.moments)
        usable = np.isfinite(lengths) & (np.abs(corrections.weights) < MAX_WEIGHT).all(axis=1)
        weights = np.where(usable[:, None], corrections.weights, 0.0)
        if self._correction != "raw":
            limits = self._bound * np.sqrt(corrections.moments[:, DELTA, DELTA])
            over = usable & (lengths > limits)
            weights[over] *= (limits[over] / lengths[over])[:, None]
        return weights

    def _calibrate(self, client: ClientId, change: kernels.Change) -> Float:
        """Compare the sender's predicted change with the one it really made; returns its rows' products with the step.

        Both are measured in the larger of the sender's last update and its real change, so that no client, however
        long its updates, weighs more than another.
        """
        corrections, real = self.history.correction_along(client, change)
        weights, moments = self._trusted(corrections)[0], corrections.moments[0]
        unit = max(float(moments[DELTA, DELTA]), change.delta_change**2)
        if unit > 0.0:
            self._agreement = self._decay * self._agreement + float(weights @ real) / unit
            self._prediction = self._decay * self._prediction + float(weights @ moments @ weights) / unit
        return np.asarray(moments[BASE])


def _lengths(weights: Float, moments: Float) -> Float:
    """|weighted row sum| per client, from inner products alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ni,nij,nj->n", weights, moments, weights)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
