"""AsyncSGD: apply every update as it comes. The undefended baseline.

S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, without the
compensation, as the SecureAFL paper's Algorithm 1 has it:  w <- w - eta g.
"""

from __future__ import annotations

from collections.abc import Mapping

from secureafl.defenses.base import norm, staleness
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Verdict, refuse


class AsyncSGDSettings(Settings):
    """AsyncSGD has nothing to set."""


class AsyncSGD:
    """Accepts everything that is a finite vector."""

    def __init__(self, dim: int, settings: AsyncSGDSettings = AsyncSGDSettings()) -> None:
        self._dim = dim
        self.settings = settings

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        evidence = {"norm": norm(update.delta), "staleness": float(staleness(update, model))}
        return Verdict(True, Reason.ACCEPTED, update.delta, evidence)

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""
