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
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl import kernels
from secureafl.defenses.base import clip_to_norm, norm, scoped, staleness, unscoped
from secureafl.gaps import GapProducts
from secureafl.history import Corrections, Float, History
from secureafl.lipschitz import FactorLog, lipschitz_factor
from secureafl.settings import Settings
from secureafl.storage import BASE, DELTA
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict, refuse

MAX_WEIGHT = 1e30
"""Largest factor on a remembered row: its product with a number of the row still fits into float32."""


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
    history_dtype: Literal["float32", "float16"] = "float32"
    """How history is kept; float16, with a scale per row, takes two thirds of the memory and is read in half the time.
    [A]"""
    refresh_interval: int = Field(512, ge=1)
    """Steps after which inner products that are carried along are computed exactly again. [A]"""
    threads: int | None = Field(None, ge=1)
    """Threads that a step may use; None for all of the machine. Results do not depend on it. [A]"""

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

    def __init__(
        self,
        dim: int,
        settings: SecureAFLSettings = SecureAFLSettings(),
        *,
        server_lr: float = 1.0,
        history_path: Path | None = None,
    ) -> None:
        """
        server_lr     the server's learning rate. If it is not what the model is moved by, results are the same, but
                      each step takes a second pass over the history
        history_path  directory for a memory-mapped history that may be larger than memory
        """
        self._dim = dim
        self.settings = settings
        self._server_lr = server_lr
        self.log = FactorLog(settings.percentile, settings.window)
        self.history = History(
            dim,
            settings.memory,
            min_curvature=settings.min_curvature,
            strict=settings.triangle == "strict",
            precision=settings.history_dtype,
            path=history_path,
            threads=settings.threads,
        )
        self.gaps = GapProducts(self.history, settings.refresh_interval)
        self._num_arrivals = 0
        self._agreement = 0.0  # decayed sum of <real change, predicted change>
        self._prediction = 0.0  # decayed sum of |predicted change|^2

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
        delta, change = update.delta, None
        evidence = {"norm": norm(delta), "staleness": float(staleness(update, model))}
        if update.client in self.history:
            change = self.history.change(update.client, delta, update.base.params)
            accepted, reason = self._judge(change, evidence)
        else:
            delta = clip_to_norm(delta, self.settings.clip_norm)
            accepted, reason = True, Reason.FIRST_CONTACT
        direction = self._direction(update.client, delta if accepted else None, model.params)
        if accepted or self.settings.history == "all":
            self._learn(update, delta, change, accepted)
        self._num_arrivals += 1
        evidence["calibration"] = self.calibration
        if direction is not None:
            evidence["direction_norm"] = norm(direction)
        return Verdict(accepted, reason, direction, evidence)

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would have sent for `params`, as far as its past tells."""
        weights = self._weights(self.history.correction(client, params))
        return self.history.estimate(client, weights[0], params)

    def estimates(self, params: Vector) -> Vector:
        """(n, d): what every known client would have sent for `params`, in the order of `history.clients`."""
        out = np.empty((len(self.history), self._dim), np.float32)
        self.history.estimates(self._weights(self.history.corrections(params)), params, out)
        return out

    def state_dict(self) -> StateDict:
        return {
            **scoped("log", self.log.state_dict()),
            **scoped("history", self.history.state_dict()),
            **scoped("gaps", self.gaps.state_dict()),
            "num_arrivals": np.array(self._num_arrivals, np.int64),
            "calibration": np.array([self._agreement, self._prediction]),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.log.load_state_dict(unscoped("log", state))
        self.history.load_state_dict(unscoped("history", state))
        self.gaps.load_state_dict(unscoped("gaps", state))
        self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
        self._agreement, self._prediction = np.asarray(state["calibration"], np.float64).tolist()

    def _judge(self, change: kernels.Change, evidence: dict[str, float]) -> tuple[bool, Reason]:
        factor = lipschitz_factor(change.delta_change, change.param_change)  # Eq. (2)
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
        num_votes = len(self.history) - (sender in self.history) + (received is not None)
        if num_votes == 0:
            return None
        weights = self._weights(self.history.corrections(params, self.gaps.at(params)))
        step = self.history.step(weights, params, sender, received, self._rule(num_votes), self._server_lr)
        self.gaps.advance(step)
        return step.direction

    def _rule(self, num_votes: int) -> kernels.Rule:
        if self.settings.aggregate == "median":
            return kernels.Rule.median(num_votes)
        if self.settings.aggregate == "trimmed_mean":
            return kernels.Rule.trimmed_mean(num_votes, math.floor(self.settings.trim * num_votes))
        return kernels.Rule.mean(num_votes)

    def _learn(self, update: Update, delta: Vector, change: kernels.Change | None, accepted: bool) -> None:
        """Make the upload its sender's reference, and see how well it had been predicted."""
        along = None
        if change is not None and self.settings.correction == "calibrated" and accepted:
            along = self._calibrate(update.client, change)
        remembered = self.history.remember(update.client, delta, update.base.params, self.gaps.params, change)
        self.gaps.replace(self.history.slot(update.client), remembered, along)

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
        usable = np.isfinite(lengths) & (np.abs(corrections.weights) < MAX_WEIGHT).all(axis=1)
        weights = np.where(usable[:, None], corrections.weights, 0.0)
        if self.settings.correction != "raw":
            limits = self.settings.correction_bound * np.sqrt(corrections.moments[:, DELTA, DELTA])
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
            decay = self.settings.calibration_decay
            self._agreement = decay * self._agreement + float(weights @ real) / unit
            self._prediction = decay * self._prediction + float(weights @ moments @ weights) / unit
        return np.asarray(moments[BASE])


def _lengths(weights: Float, moments: Float) -> Float:
    """|weighted row sum| per client, from inner products alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ni,nij,nj->n", weights, moments, weights)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
