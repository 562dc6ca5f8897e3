"""Is the update accepted? By how abruptly its sender changed, and by whether it pulls against everyone else.

lambda = |g - g_ref| / |w - w_ref|                            Eq. (2)
accept iff lambda <= percentile of all factors so far         Eq. (3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.lipschitz import FactorLog, lipschitz_factor
from secureafl.defenses.secureafl.consensus import Agreement
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Judge, Votes
from secureafl.types import Array, ClientId, Reason, StateDict


class LipschitzFilter(Judge):
    """Rejects a sender that changed more than most do, for as much as the model changed.

    percentile   share of past factors that `tolerance` is measured from: the paper's alpha
    tolerance    how many times that percentile passes
    window       judge against the last so many arrivals; None for all
    gap_damping  factors are measured over sqrt(|w - w_ref|^2 + (gap_damping * median gap)^2)
    per_client   count each client's last factor once, instead of every arrival's
    passes       who passes after first contact: the smooth, `all` or `none`
    warmup       arrivals at the start in which all pass
    """

    name = "filter"

    def __init__(
        self,
        percentile: float = 0.8,
        tolerance: float = 1.0,
        window: int | None = None,
        gap_damping: float = 0.0,
        *,
        per_client: bool = False,
        passes: Literal["smooth", "all", "none"] = "smooth",
        warmup: int = 0,
    ) -> None:
        log = ClientLog if per_client else FactorLog
        self.factors = log(percentile, window, tolerance)
        self._gaps = log(0.5, window)
        self._gap_damping = gap_damping
        self._passes = passes
        self._warmup = warmup

    def judge(self, arrival: Arrival) -> str | None:
        if not arrival.known:
            return None
        factor = lipschitz_factor(arrival.delta_change, self._damped(arrival.param_change))  # Eq. (2)
        arrival.evidence.update(lipschitz_factor=factor, threshold=self.factors.threshold())
        # Eq. (3); the factor joins the log before it is tested
        smooth = self.factors.admit(factor, arrival.client, arrival.counts)
        self._gaps.admit(arrival.param_change, arrival.client, arrival.counts)
        if self._all_pass(arrival.number):
            return None
        if self._passes == "none":
            return Reason.FILTER_CLOSED
        if smooth:
            return None
        return Reason.CHANGED_ON_SAME_MODEL if math.isinf(factor) else Reason.CHANGED_TOO_ABRUPTLY

    def allowance(self, param_change: float, number: int) -> float:
        """How far an update may be from its sender's reference and still pass; infinite where all do."""
        if self._all_pass(number):
            return math.inf
        gap = self._damped(param_change)
        return self.factors.threshold() * gap if gap > 0.0 else 0.0

    def forget(self, client: ClientId) -> None:
        self.factors.forget(client)
        self._gaps.forget(client)

    def state_dict(self) -> StateDict:
        return {**scoped("factors", self.factors.state_dict()), **scoped("gaps", self._gaps.state_dict())}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.factors.load_state_dict(unscoped("factors", state))
        self._gaps.load_state_dict(unscoped("gaps", state))

    def _all_pass(self, number: int) -> bool:
        return self._passes == "all" or number < self._warmup

    def _damped(self, gap: float) -> float:
        """The gap between two models, as far as a change is measured by it."""
        typical = self._gaps.threshold()
        return math.hypot(gap, self._gap_damping * typical) if math.isfinite(typical) else gap


class TooLong(Judge):
    """Rejects an update that is more than `limit` times as long as it may count, but for a client's first."""

    name = "too-long"

    def __init__(self, limit: float = 8.0) -> None:
        self._limit = limit

    def judge(self, arrival: Arrival) -> str | None:
        return Reason.TOO_LONG if arrival.met and arrival.excess > self._limit else None


class AgainstConsensus(Judge, Votes):
    """Rejects, and excludes from voting, a client whose updates keep pointing away from the consensus.

    What it rejects is remembered: such a client may come back, and is then measured from where it was.

    limit  spreads below everyone's median agreement at which a client is against the consensus
    decay  weight left of a client's average after its next update
    """

    name = "consensus"
    reads_agreement = True
    remembers = True

    def __init__(self, limit: float = 4.0, decay: float = 0.9) -> None:
        self.agreement = Agreement(limit, decay)

    def judge(self, arrival: Arrival) -> str | None:
        if arrival.agreement is not None:
            self.agreement.hear(arrival.client, arrival.agreement)
        arrival.evidence["agreement"] = self.agreement.average(arrival.client)
        return Reason.AGAINST_CONSENSUS if arrival.client in self.agreement.opposing else None

    def excluded(self) -> Mapping[ClientId, str]:
        return dict.fromkeys(self.agreement.opposing, Reason.AGAINST_CONSENSUS)

    def state_dict(self) -> StateDict:
        return self.agreement.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.agreement.load_state_dict(state)
