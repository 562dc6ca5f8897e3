"""SecureAFL: judge the arriving update by how abruptly its sender changed, estimate what everyone else would have sent
now, and step along the coordinate-wise median of both.

A. Gao, F. Wang, Z. Wan, Y. Quan, Z. Liu, M. Fang, "SecureAFL: Secure Asynchronous Federated Learning", ASIA CCS 2026.

    lambda = |g - g_ref| / |w_base - w_ref|                      Eq. (2)
    accept iff lambda <= percentile of all factors so far        Eq. (3)
    estimate_k = g_k + B_k (w_now - w_k)                         Eq. (1) of Sec. 4.3, B_k by Algorithm 2
    g = median(received if accepted, estimates of the others)    Eqs. (4)-(5)

Where the paper is ambiguous, docs/decisions says which reading was taken and why. The defaults go beyond the paper
(decisions 0015 to 0022); `SecureAFLSettings.paper()` is its text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from secureafl import kernels
from secureafl.agreement import Agreement
from secureafl.defenses.base import clip_to_norm, norm, scoped, staleness, unscoped
from secureafl.gaps import GapProducts
from secureafl.history import Corrections, Float, History
from secureafl.likeness import Likeness
from secureafl.lipschitz import FactorLog, lipschitz_factor
from secureafl.settings import Settings
from secureafl.storage import BASE, DELTA
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict, refuse

MAX_WEIGHT = 1e30
"""Largest factor on a remembered row: its product with a number of the row still fits into float32."""


class SecureAFLSettings(Settings):
    """SecureAFL's settings; values marked [P] are the paper's, [A] are ours."""

    percentile: float = Field(0.5, gt=0.0, le=1.0)
    """Share of past Lipschitz factors that `tolerance` is measured from: the paper's alpha. The filter holds as long as
    fewer than 1 - percentile of all uploads are wild. [P: 0.8]"""
    tolerance: float = Field(3.0, gt=0.0)
    """How many times that percentile an update's own factor may be. [P: 1]"""
    window: int | None = Field(1000, ge=1)
    """Judge against the last so many arrivals only; None for all of them. [P: all]"""
    gap_damping: float = Field(1.0, ge=0.0)
    """Factors are measured over sqrt(|w - w_ref|^2 + (gap_damping * typical gap)^2), so that they tell how a client
    behaves and not how little the model moved meanwhile. [P: 0]"""
    filter: Literal["lipschitz", "accept_all", "accept_none"] = "lipschitz"
    """Who passes after first contact: those smooth enough [P], everyone (Variant III) or no one (Variant IV)."""
    warmup_rounds: int = Field(0, ge=0)
    """Arrivals at the start during which the filter lets everyone pass. [A]"""
    max_change: float | None = Field(1.0, gt=0.0)
    """An update counts as at most so many times as long as is typical, and as at most so many times the typical change
    away from its client's last one; never as more than `clip_norm`. None for no such limits. [P: None]"""
    opposition: float | None = Field(4.0, gt=0.0)
    """Spreads by which a client's average agreement with the median may lie below everyone's; one that lies lower has
    no vote. None for no such test. [P: None]"""
    alike: float | None = Field(0.5, gt=0.0, lt=1.0)
    """Cosine between what two clients keep asking for above which they are alike. A group of clients who are alike,
    if larger than usual, has the fewer votes the larger it is, drawn by lot at every step. None for no such limit.
    [P: None]"""
    sketch_seed: int = Field(0, ge=0)
    """Seed of the signs by which clients are compared. Who knows it can hide from `alike`: choose one, and keep it
    secret. [A]"""
    agreement_decay: float = Field(0.9, ge=0.0, lt=1.0)
    """Weight left of a client's average after its next update, where `opposition` and `alike` look at averages. [A]"""
    silence_after: int | None = Field(3, ge=1)
    """Rejections in a row after which a client's estimate has no vote until it is believed again. [P: None]"""
    lead: float = Field(0.3, ge=0.0, le=1.0)
    """Share of a believed update's change, g - g_ref, that moves the model at once, beside its one vote in n. While
    none of its updates is rejected as opposing, a client adds its last minus its first this way in all. [P: 0]"""
    memory: int = Field(3, ge=0)
    """L-BFGS pairs remembered per client, where estimates are corrected: the paper's epsilon. [P]"""
    correction: Literal["none", "raw", "bounded", "calibrated"] = "none"
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
    bucket: int = Field(2, ge=1)
    """Votes that are averaged, drawn by lot at every step, before the median is taken. More learn faster where clients
    differ, and resist fewer liars. [P: 1]"""
    trim: float = Field(0.2, ge=0.0, lt=0.5)
    """Share cut from each end by `trimmed_mean`. [A]"""
    history_dtype: Literal["float32", "float16"] = "float32"
    """How history is kept. float16, with a scale per row, is read in half the time; exact references stay beside it, so
    that memory is saved only where pairs are kept (`correction`). [A]"""
    refresh_interval: int = Field(512, ge=1)
    """Steps after which inner products that are carried along are computed exactly again. [A]"""
    threads: int | None = Field(None, ge=1)
    """Threads that a step may use; None for all of the machine. Results do not depend on it. [A]"""

    @classmethod
    def paper(cls, **changes: Any) -> SecureAFLSettings:
        """The paper's text: Algorithm 2's product as it is. Clipped estimates and usable pairs only, as always."""
        return cls(**{**PAPER, **changes})


PAPER: Mapping[str, Any] = {
    "percentile": 0.8,
    "tolerance": 1.0,
    "window": None,
    "gap_damping": 0.0,
    "max_change": None,
    "opposition": None,
    "alike": None,
    "silence_after": None,
    "lead": 0.0,
    "correction": "raw",
    "bucket": 1,
}
"""The paper's own reading, as changes to `SecureAFLSettings`."""

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
        self.log = FactorLog(settings.percentile, settings.window, settings.tolerance)
        self._changes, self._gaps, self._norms = (FactorLog(0.5, settings.window) for _ in range(3))
        self.agreement = Agreement(settings.opposition, settings.agreement_decay) if settings.opposition else None
        self.likeness = (
            Likeness(dim, settings.alike, settings.agreement_decay, settings.sketch_seed) if settings.alike else None
        )
        self._num_rejections: Counter[ClientId] = Counter()  # in a row, per client
        self.history = History(
            dim,
            settings.memory if self._corrects else 0,
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
        client, delta, change = update.client, update.delta, None
        evidence = {"norm": norm(delta), "staleness": float(staleness(update, model))}
        longest, furthest = self._limit(self._norms), self._limit(self._changes)
        if client in self.history:
            change = self.history.change(client, delta, update.base.params)
            accepted, reason = self._judge(change, evidence)
            self._changes.admit(change.delta_change)
            self._gaps.admit(change.param_change)
            if accepted and self.settings.max_change is not None:  # without it newcomers alone are clipped
                if evidence["norm"] > longest:
                    delta = clip_to_norm(delta, longest)
                    change = self.history.change(client, delta, update.base.params)
                if change.delta_change > furthest:
                    delta, change = self._drawn(client, change, furthest)
        else:
            delta = clip_to_norm(delta, longest)
            accepted, reason = True, Reason.FIRST_CONTACT
        self._norms.admit(evidence["norm"])
        smooth = accepted
        if accepted and self.agreement is not None:
            if not self.agreement.hear(client, update.delta):
                accepted, reason = False, Reason.OPPOSES_THE_CROWD
            evidence["agreement"] = self.agreement.average(client)
        self._num_rejections[client] = 0 if accepted else self._num_rejections[client] + 1
        if smooth and self.likeness is not None:
            self.likeness.hear(client, update.delta)
            evidence["alike"] = float(self.likeness.num_alike(client))
        direction = self._direction(client, delta if accepted else None, change, model.params)
        if smooth or self.settings.history == "all":  # one who opposes may come back, so what it sends is remembered
            self._learn(update, delta, change, accepted)
        self._num_arrivals += 1
        if self.settings.correction == "calibrated":
            evidence["calibration"] = self.calibration
        if direction is not None:
            evidence["direction_norm"] = norm(direction)
        return Verdict(accepted, reason, direction, evidence)

    def allowance(self, client: ClientId, base: Vector) -> float:
        """How far an update for `base` may be from the client's last one and still pass the filter; infinite where the
        filter does not judge it.
        """
        if client not in self.history or self._unfiltered:
            return math.inf
        gap = self._damped(self.history.distances(client, self.history.last_delta(client), base)[1])
        return self.log.threshold() * gap if gap > 0.0 else 0.0

    @property
    def silent(self) -> frozenset[ClientId]:
        """Known clients without a vote: those who oppose the crowd, and those rejected too often in a row."""
        opposing = self.agreement.opposing if self.agreement is not None else frozenset()
        limit = self.settings.silence_after or math.inf
        return frozenset(k for k in self.history.clients if k in opposing or self._num_rejections[k] >= limit)

    @property
    def absent(self) -> frozenset[ClientId]:
        """Who may not vote at this step, because too many are alike and the lot fell on others."""
        return self.likeness.absent(self._num_arrivals) if self.likeness is not None else frozenset()

    def would_oppose(self, client: ClientId, delta: Vector) -> bool:
        """Whether this update would cost its sender the vote, as one who opposes the crowd."""
        return self.agreement is not None and self.agreement.would_oppose(client, delta)

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would have sent for `params`, as far as its past tells."""
        weights = self._weights(self.history.correction(client, params))
        return self.history.estimate(client, weights[0], params)

    def estimates(self, params: Vector) -> Vector:
        """(n, d): what every known client would have sent for `params`, in the order of `history.clients`."""
        out = np.empty((len(self.history), self._dim), np.float32)
        self.history.estimates(self._weights(self.history.corrections(params, self._no_products)), params, out)
        return out

    def state_dict(self) -> StateDict:
        return {
            **scoped("log", self.log.state_dict()),
            **scoped("history", self.history.state_dict()),
            **scoped("gaps", self.gaps.state_dict()),
            **scoped("changes", self._changes.state_dict()),
            **scoped("typical_gaps", self._gaps.state_dict()),
            **scoped("norms", self._norms.state_dict()),
            **(scoped("agreement", self.agreement.state_dict()) if self.agreement is not None else {}),
            **(scoped("likeness", self.likeness.state_dict()) if self.likeness is not None else {}),
            "rejections": np.array(sorted(self._num_rejections.items()), np.int64).reshape(-1, 2),
            "num_arrivals": np.array(self._num_arrivals, np.int64),
            "calibration": np.array([self._agreement, self._prediction]),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.log.load_state_dict(unscoped("log", state))
        self.history.load_state_dict(unscoped("history", state))
        self.gaps.load_state_dict(unscoped("gaps", state))
        self._changes.load_state_dict(unscoped("changes", state))
        self._gaps.load_state_dict(unscoped("typical_gaps", state))
        self._norms.load_state_dict(unscoped("norms", state))
        if self.agreement is not None:
            self.agreement.load_state_dict(unscoped("agreement", state))
        if self.likeness is not None:
            self.likeness.load_state_dict(unscoped("likeness", state))
        self._num_rejections = Counter({ClientId(k): c for k, c in np.asarray(state["rejections"]).tolist()})
        self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
        self._agreement, self._prediction = np.asarray(state["calibration"], np.float64).tolist()

    def _judge(self, change: kernels.Change, evidence: dict[str, float]) -> tuple[bool, Reason]:
        factor = lipschitz_factor(change.delta_change, self._damped(change.param_change))  # Eq. (2)
        evidence |= {"lipschitz_factor": factor, "threshold": self.log.threshold()}
        smooth = self.log.admit(factor)  # Eq. (3); the factor joins the log before it is tested
        if self._unfiltered:
            return True, Reason.ACCEPTED
        if self.settings.filter == "accept_none":
            return False, Reason.FILTER_CLOSED
        if smooth:
            return True, Reason.ACCEPTED
        return False, Reason.CHANGED_ON_SAME_MODEL if math.isinf(factor) else Reason.CHANGED_TOO_ABRUPTLY

    @property
    def _unfiltered(self) -> bool:
        """Whether everyone passes now."""
        return self.settings.filter == "accept_all" or self._num_arrivals < self.settings.warmup_rounds

    def _damped(self, gap: float) -> float:
        """The gap between two models, as far as a change is measured by it."""
        typical = self._gaps.threshold()
        return math.hypot(gap, self.settings.gap_damping * typical) if math.isfinite(typical) else gap

    def _limit(self, typical: FactorLog) -> float:
        """The longest that counts in full, given what is typical."""
        if self.settings.max_change is None:
            return self.settings.clip_norm
        return min(self.settings.clip_norm, self.settings.max_change * typical.threshold())

    def _drawn(self, client: ClientId, change: kernels.Change, limit: float) -> tuple[Vector, kernels.Change]:
        """An update that counts as less far away from its client's last one, drawn towards that."""
        share = limit / change.delta_change
        step = np.float32(share) * change.delta_step
        drawn = change._replace(delta_step=step, delta_change=limit, curvature=share * change.curvature)
        return self.history.last_delta(client) + step, drawn

    def _direction(
        self, sender: ClientId, received: Vector | None, change: kernels.Change | None, params: Vector
    ) -> Vector | None:
        """Eqs. (4)-(5): combine the received update, if believed, with the estimates of everyone else."""
        if not self.settings.estimates:
            return received
        absent = self.absent
        vote = None if sender in absent else received
        quiet = self.silent | absent | {sender}
        silent = np.array([client in quiet for client in self.history.clients], np.bool_)
        num_votes = int((~silent).sum()) + (vote is not None)
        if num_votes == 0:
            return None
        products = self.gaps.at(params) if self._corrects else self._no_products
        lead, bucket = None, self.settings.bucket
        if self.settings.lead > 0.0 and received is not None and change is not None:
            lead = np.float32(self.settings.lead) * change.delta_step
        step = self.history.step(
            self._weights(self.history.corrections(params, products)),
            params,
            sender,
            vote,
            self._rule(-(-num_votes // bucket)),
            self._server_lr,
            lead=lead,
            silent=silent,
            follow=self._corrects,
            order=shuffled(num_votes, self._num_arrivals) if bucket > 1 else None,
            bucket=bucket,
        )
        if self._corrects:
            self.gaps.advance(step)
        if self.agreement is not None:
            self.agreement.follow(step.direction if lead is None else step.direction - lead)
        return step.direction

    @property
    def _corrects(self) -> bool:
        """Whether estimates are more than last updates, so that gaps to the present model matter."""
        return self.settings.correction != "none"

    @property
    def _no_products(self) -> Float | None:
        """What stands for the rows' products with the gaps where nothing is corrected: it spares a pass over them."""
        return None if self._corrects else np.zeros((len(self.history), self.history.num_rows))

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


def shuffled(num_votes: int, arrival: int) -> npt.NDArray[np.int64]:
    """The votes' places of one arrival: drawn by lot, and the same when the arrival is repeated."""
    return np.random.Generator(np.random.Philox(key=arrival)).permutation(num_votes)


def _lengths(weights: Float, moments: Float) -> Float:
    """|weighted row sum| per client, from inner products alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ni,nij,nj->n", weights, moments, weights)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
