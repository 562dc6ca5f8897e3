"""SecureAFL: judge the arriving update by how abruptly its sender changed, estimate what everyone else would have sent
now, and step along the coordinate-wise median of both.

A. Gao, F. Wang, Z. Wan, Y. Quan, Z. Liu, M. Fang, "SecureAFL: Secure Asynchronous Federated Learning", ASIA CCS 2026.

    lambda = |g - g_ref| / |w_base - w_ref|                      Eq. (2)
    accept iff lambda <= percentile of all factors so far        Eq. (3)
    estimate_k = g_k + B_k (w_now - w_k)                         Eq. (1) of Sec. 4.3, B_k by Algorithm 2
    g = median(received if accepted, estimates of the others)    Eqs. (4)-(5)

Where the paper is ambiguous, docs/decisions says which reading was taken and why. Two departures are on by default and
can be switched off: mini-batch noise makes the raw Hessian product explode, so it is `calibrated` and bounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl import kernels
from secureafl.defenses.base import clip_to_norm, dot, norm, scoped, staleness, unscoped
from secureafl.history import DELTA, Corrections, Float, History
from secureafl.lipschitz import FactorLog, lipschitz_factor
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict, refuse


class SecureAFLSettings(Settings):
    """SecureAFL's settings; values marked [P] are the paper's, [A] are ours."""

    percentile: float = Field(0.8, gt=0.0, le=1.0)
    """Share of past Lipschitz factors an update's own factor may not exceed: the paper's alpha. [P]"""
    window: int | None = Field(None, ge=1)
    """Judge against the last so many factors only; None for all of them. [P: all]"""
    filter: Literal["lipschitz", "accept_all", "accept_none"] = "lipschitz"
    """Who passes after first contact: those smooth enough [P], everyone (Variant III) or no one (Variant IV)."""
    warmup_rounds: int = Field(0, ge=0)
    """Arrivals at the start during which the filter lets everyone pass. [A]"""
    memory: int = Field(3, ge=0)
    """L-BFGS pairs remembered per client: the paper's epsilon. [P]"""
    correction: Literal["none", "raw", "bounded", "calibrated"] = "calibrated"
    """How far estimates follow the Hessian product: not at all, literally [P], never by more than `correction_bound`,
    or bounded and scaled by how well it predicted real arrivals so far. [A]"""
    correction_bound: float = Field(0.5, gt=0.0)
    """Longest correction, as a multiple of the client's last update. [A]"""
    calibration_decay: float = Field(0.99, gt=0.0, lt=1.0)
    """Weight left of one arrival's evidence after the next: an exponential window. [A]"""
    triangle: Literal["strict", "inclusive"] = "strict"
    """Which lower triangle Algorithm 2's Tril takes; `inclusive` annihilates the newest direction. [A]"""
    min_curvature: float = Field(1e-8, ge=0.0)
    """Pairs with s.y <= min_curvature |s||y| are not kept. [A]"""
    clip_norm: float = Field(50.0, gt=0.0)
    """Longest first contact and longest estimate: the paper's G. [P]"""
    history: Literal["accepted", "all"] = "accepted"
    """Which uploads become a client's reference: only believed ones, or also rejected ones. [A]"""
    estimates: bool = True
    """Whether silent clients are estimated; without, the step is the accepted update alone (Variant II). [P]"""
    aggregate: Literal["median", "trimmed_mean", "mean"] = "median"
    """How received and estimated updates become one; `mean` is Variant I. [P]"""
    trim: float = Field(0.2, ge=0.0, lt=0.5)
    """Share cut from each end by `trimmed_mean`. [A]"""

    @classmethod
    def paper(cls) -> SecureAFLSettings:
        """The paper's text: Algorithm 2's product as it is. Clipped estimates and usable pairs only, as always."""
        return cls(correction="raw")


PAPER_VARIANTS: Mapping[str, Mapping[str, object]] = {
    "I": {"aggregate": "mean"},
    "II": {"estimates": False},
    "III": {"filter": "accept_all"},
    "IV": {"filter": "accept_none"},
}
"""The paper's ablations, as changes to `SecureAFLSettings`."""


class SecureAFL:
    """The defense itself: a thin shell of state around `FactorLog`, `History` and the kernels."""

    def __init__(self, dim: int, settings: SecureAFLSettings = SecureAFLSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self.log = FactorLog(settings.percentile, settings.window)
        self.history = History(
            dim, settings.memory, min_curvature=settings.min_curvature, strict=settings.triangle == "strict"
        )
        self._num_arrivals = 0
        self._agreement = 0.0  # decayed sum of <real change, predicted change>
        self._prediction = 0.0  # decayed sum of |predicted change|^2
        self._votes: Vector = np.empty((0, dim), np.float32)

    @classmethod
    def paper(cls, dim: int) -> SecureAFL:
        """SecureAFL as the paper's text has it, without our bound on the correction."""
        return cls(dim, SecureAFLSettings.paper())

    @property
    def calibration(self) -> float:
        """Share of the predicted change that real arrivals bore out, between 0 and 1; 0 before any evidence."""
        return min(1.0, max(0.0, self._agreement / self._prediction)) if self._prediction > 0.0 else 0.0

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        delta, evidence = update.delta, {"norm": norm(update.delta), "staleness": float(staleness(update, model))}
        if update.client not in self.history:
            delta = clip_to_norm(delta, self.settings.clip_norm)
            accepted, reason = True, Reason.FIRST_CONTACT
        else:
            accepted, reason = self._judge(update, evidence)
        direction = self._direction(update.client, delta if accepted else None, model.params)
        if accepted or self.settings.history == "all":
            if self.settings.correction == "calibrated" and accepted and update.client in self.history:
                self._calibrate(update)
            self.history.remember(update.client, delta, update.base.params)
        self._num_arrivals += 1
        evidence["calibration"] = self.calibration
        if direction is not None:
            evidence["direction_norm"] = norm(direction)
        return Verdict(accepted, reason, direction, evidence)

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would have sent for `params`, as far as its past tells."""
        weights = self._weights(self.history.correction(client, params))
        return self.history.estimate(client, weights[0], params)

    def state_dict(self) -> StateDict:
        return {
            **scoped("log", self.log.state_dict()),
            **scoped("history", self.history.state_dict()),
            "num_arrivals": np.array(self._num_arrivals, np.int64),
            "calibration": np.array([self._agreement, self._prediction]),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.log.load_state_dict(unscoped("log", state))
        self.history.load_state_dict(unscoped("history", state))
        self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
        self._agreement, self._prediction = np.asarray(state["calibration"], np.float64).tolist()

    def _judge(self, update: Update, evidence: dict[str, float]) -> tuple[bool, Reason]:
        delta_change, param_change = self.history.distances(update.client, update.delta, update.base.params)
        factor = lipschitz_factor(delta_change, param_change)  # Eq. (2)
        evidence |= {"lipschitz_factor": factor, "threshold": self.log.threshold()}
        smooth = self.log.admit(factor)  # Eq. (3); the factor joins the log before it is tested
        if self.settings.filter == "accept_all" or self._num_arrivals < self.settings.warmup_rounds:
            return True, Reason.ACCEPTED
        if self.settings.filter == "accept_none":
            return False, Reason.FILTER_CLOSED
        if smooth:
            return True, Reason.ACCEPTED
        return False, Reason.CHANGED_ON_SAME_MODEL if math.isinf(factor) else Reason.CHANGED_TOO_ABRUPTLY

    def _direction(self, sender: ClientId, received: Vector | None, params: Vector) -> Vector | None:
        """Eqs. (4)-(5): combine the received update, if believed, with the estimates of everyone else."""
        if not self.settings.estimates:
            return received
        votes = self._collect_votes(sender, received, params)
        if len(votes) == 0:
            return None
        if self.settings.aggregate == "median":
            return kernels.coordinate_median(votes)
        if self.settings.aggregate == "trimmed_mean":
            return kernels.trimmed_mean(votes, math.floor(self.settings.trim * len(votes)))
        return kernels.mean(votes)

    def _collect_votes(self, sender: ClientId, received: Vector | None, params: Vector) -> Vector:
        """One row per vote, in a buffer that is used again at the next arrival."""
        known = len(self.history)
        if len(self._votes) <= known:
            self._votes = np.empty((2 * known + 1, self._dim), np.float32)
        if known:
            self.history.estimates(self._weights(self.history.corrections(params)), params, self._votes)
        place, count = (self.history.slot(sender), known) if sender in self.history else (known, known + 1)
        if received is not None:
            self._votes[place] = received
        else:  # close the gap: the order of votes does not matter
            count -= 1
            self._votes[place] = self._votes[count]
        return self._votes[:count]

    def _weights(self, corrections: Corrections) -> Float:
        """(n, r): what each client's rows weigh in its estimate g + correction, clipped to `clip_norm`."""
        weights = self._trusted(corrections)
        if self.settings.correction == "calibrated":
            weights = weights * self.calibration
        weights[:, DELTA] += 1.0
        lengths = _lengths(weights, corrections.moments)
        over = lengths > self.settings.clip_norm
        weights[over] *= (self.settings.clip_norm / lengths[over])[:, None]
        return weights

    def _trusted(self, corrections: Corrections) -> Float:
        """The Hessian product as far as we follow it: (n, r) weights of the correction alone."""
        if self.settings.correction == "none":
            return np.zeros_like(corrections.weights)
        lengths = _lengths(corrections.weights, corrections.moments)
        usable = np.isfinite(lengths) & np.isfinite(corrections.weights).all(axis=1)
        weights = np.where(usable[:, None], corrections.weights, 0.0)
        if self.settings.correction != "raw":
            limits = self.settings.correction_bound * np.sqrt(corrections.moments[:, DELTA, DELTA])
            over = usable & (lengths > limits)
            weights[over] *= (limits[over] / lengths[over])[:, None]
        return weights

    def _calibrate(self, update: Update) -> None:
        """Compare the sender's predicted change with the one it really made.

        Both are measured in the larger of the sender's last update and its real change, so that no client, however
        long its updates, weighs more than another.
        """
        corrections = self.history.correction(update.client, update.base.params)
        predicted = self.history.estimate(update.client, self._trusted(corrections)[0], update.base.params)
        last = self.history.last_delta(update.client)
        real = update.delta - last
        unit = max(dot(last, last), dot(real, real))
        if unit > 0.0:
            decay = self.settings.calibration_decay
            self._agreement = decay * self._agreement + dot(real, predicted) / unit
            self._prediction = decay * self._prediction + dot(predicted, predicted) / unit


def _lengths(weights: Float, moments: Float) -> Float:
    """|weighted row sum| per client, from inner products alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ni,nij,nj->n", weights, moments, weights)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
