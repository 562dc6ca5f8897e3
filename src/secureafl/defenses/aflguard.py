"""AFLGuard: accept an update that is not far from the server's own, measured in lengths of the latter.

M. Fang et al., "AFLGuard: Byzantine-robust Asynchronous Federated Learning", ACSAC 2022.

    g_s = trusted gradient at the server's (possibly stale) model
    accept iff |g - g_s| <= lambda |g_s|;  step g, unscaled

Note what the rule lets pass: for lambda >= 1 the zero update, and at 1.5 even -g_s / 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from secureafl.defenses.base import norm, scoped, staleness, unscoped
from secureafl.defenses.trusted import CachedReference, Reference
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Verdict, refuse


class AFLGuardSettings(Settings):
    """AFLGuard's settings."""

    max_distance: float = Field(1.5, gt=0.0)
    """Largest |g - g_s| in units of |g_s|: the paper's lambda. [U]"""
    server_delay: int = Field(0, ge=0)
    """Further arrivals that a trusted gradient serves; 0 computes it at every arrival. [A]"""


class AFLGuard:
    """Judges by the distance to a trusted gradient."""

    def __init__(self, dim: int, settings: AFLGuardSettings = AFLGuardSettings(), *, reference: Reference) -> None:
        self._dim = dim
        self.settings = settings
        self._reference = CachedReference(reference, dim, settings.server_delay + 1)

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        trusted = self._reference.at(model)
        distance, limit = norm(update.delta - trusted), self.settings.max_distance * norm(trusted)
        evidence = {
            "norm": norm(update.delta),
            "staleness": float(staleness(update, model)),
            "distance": distance,
            "threshold": limit,
        }
        if not distance <= limit:  # also when the trusted gradient is not finite
            return refuse(Reason.FAR_FROM_REFERENCE, **evidence)
        return Verdict(True, Reason.ACCEPTED, update.delta, evidence)

    def state_dict(self) -> StateDict:
        return scoped("reference", self._reference.state_dict())

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._reference.load_state_dict(unscoped("reference", state))
