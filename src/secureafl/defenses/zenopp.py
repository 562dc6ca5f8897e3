"""Zeno++: accept an update that goes downhill on the server's own data, rescaled to the trusted gradient's length.

C. Xie, S. Koyejo, I. Gupta, "Zeno++: Robust Fully Asynchronous SGD", ICML 2020.

    v = trusted gradient, g~ = g |v| / |g|
    accept iff eta <v, g~> - rho |g~|^2 + eta epsilon >= 0;  step g~

With rho = epsilon = 0, as the SecureAFL paper describes it, that is: g and v do not point apart.
Departure: the authors' code penalises the un-normalised |g|^2; the published |g~|^2 is used here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl.defenses.base import dot, norm, scoped, staleness, unscoped
from secureafl.defenses.trusted import CachedReference, Reference
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Verdict, refuse


class ZenoPPSettings(Settings):
    """Zeno++'s settings; [C] marks values of the authors' code."""

    rho: float = Field(0.0, ge=0.0)
    """Penalty on the step's length. [C: 0.001 at server_lr 0.1]"""
    epsilon: float = Field(0.0, ge=0.0)
    """Slack. [C: 0]"""
    refresh_every: int = Field(10, ge=1)
    """Arrivals judged by one trusted gradient before it is computed anew. [C]"""


class ZenoPP:
    """Judges by the angle to a trusted gradient."""

    def __init__(
        self, dim: int, settings: ZenoPPSettings = ZenoPPSettings(), *, server_lr: float, reference: Reference
    ) -> None:
        self._dim = dim
        self.settings = settings
        self.server_lr = server_lr
        self._reference = CachedReference(reference, dim, settings.refresh_every)

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        trusted = self._reference.at(model)
        length, trusted_length = norm(update.delta), norm(trusted)
        evidence = {
            "norm": length,
            "staleness": float(staleness(update, model)),
            "reference_norm": trusted_length,
        }
        if length == 0.0 or trusted_length == 0.0:
            return refuse(Reason.AGAINST_REFERENCE, **evidence)
        evidence["cosine"] = cosine = dot(update.delta, trusted) / (length * trusted_length)
        square, eta = trusted_length**2, self.server_lr
        score = eta * cosine * square - self.settings.rho * square + eta * self.settings.epsilon
        if not score >= 0.0:  # also when the trusted gradient is not finite
            return refuse(Reason.AGAINST_REFERENCE, **evidence)
        direction = (update.delta.astype(np.float64) * (trusted_length / length)).astype(np.float32)
        return Verdict(True, Reason.ACCEPTED, direction, evidence)

    def state_dict(self) -> StateDict:
        return scoped("reference", self._reference.state_dict())

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._reference.load_state_dict(unscoped("reference", state))
