"""Sageflow: drop an update whose model is unsure of itself on public data, damp the rest by age and, optionally, by
loss.

J. Park et al., "Sageflow: Robust Federated Learning against Both Stragglers and Adversaries", NeurIPS 2021.

    candidate c = w_base - eta g;  reject iff entropy(c) >= threshold
    step (staleness + 1)^-lambda beta g,  beta = 1 or min(1, (loss(w) / loss(c))^delta)

Departures: the original groups a round's updates by staleness and weighs them within a group by loss. Here updates come
one by one, and a group of one makes that weighting void (`loss_weight = "normalised"`); `relative` compares with the
present model instead. A fixed threshold below the entropy of an untrained model rejects everything for ever, so it
never lies below the present model's own entropy plus a margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.defenses.base import norm, staleness
from secureafl.defenses.trusted import Scorer
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Verdict, refuse


class SageflowSettings(Settings):
    """Sageflow's settings; [C] marks values of the authors' code."""

    num_classes: int = Field(10, ge=2)
    """Classes of the task: entropies are measured against ln(num_classes)."""
    entropy_threshold: float = Field(1.0, gt=0.0)
    """Largest mean predictive entropy of an accepted model, on a ten-class task, times ln(num_classes)/ln(10). [C]"""
    entropy_margin: float = Field(0.1, ge=0.0)
    """The threshold never lies below the present model's entropy plus this share of ln(num_classes). [A]"""
    staleness_exponent: float = Field(0.5, ge=0.0)
    """Damping (staleness + 1)^-exponent. [C]"""
    loss_weight: Literal["normalised", "relative"] = "normalised"
    """Weight 1 as in a group of one, or the present model's loss over the candidate's. [A]"""
    loss_exponent: float = Field(1.0, ge=0.0)
    """Power of that ratio. [C]"""


class Sageflow:
    """Keeps no state: each arrival is judged by `score`, on trusted data, alone."""

    def __init__(
        self, dim: int, settings: SageflowSettings = SageflowSettings(), *, server_lr: float, score: Scorer
    ) -> None:
        self._dim = dim
        self.settings = settings
        self.server_lr = server_lr
        self._score = score

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        age = staleness(update, model)
        candidate = self._score(update.base.params - np.float32(self.server_lr) * update.delta)
        present = self._score(model.params)
        threshold = self._threshold(present.entropy)
        evidence = {
            "norm": norm(update.delta),
            "staleness": float(age),
            "entropy": candidate.entropy,
            "threshold": threshold,
            "loss": candidate.loss,
        }
        if not candidate.entropy < threshold:  # also when it is NaN
            return refuse(Reason.TOO_UNCERTAIN, **evidence)
        weight = (age + 1.0) ** -self.settings.staleness_exponent
        if self.settings.loss_weight == "relative":
            weight *= _loss_ratio(present.loss, candidate.loss) ** self.settings.loss_exponent
        evidence["weight"] = weight
        return Verdict(True, Reason.ACCEPTED, update.delta * np.float32(weight), evidence)

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""

    def _threshold(self, present_entropy: float) -> float:
        most = math.log(self.settings.num_classes)
        fixed = self.settings.entropy_threshold * most / math.log(10.0)
        return max(fixed, present_entropy + self.settings.entropy_margin * most)


def _loss_ratio(present: float, candidate: float) -> float:
    """min(1, present / candidate); 0 for a candidate whose loss is not even a number."""
    if not math.isfinite(candidate):
        return 0.0
    return 1.0 if candidate <= present else present / candidate
