"""Is the update accepted? By how abruptly its sender changed, and by whether it pulls against everyone else.

lambda = |g - g_ref| / |w - w_ref|                            Eq. (2)
accept iff lambda <= percentile of all factors so far         Eq. (3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.lipschitz import FactorLog, lipschitz_factor
from secureafl.defenses.secureafl.consensus import MIN_SPREAD, Agreement
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Judge, Votes
from secureafl.types import Array, ClientId, Reason, StateDict, Vector

FEWEST = 5
"""Clients that it takes to say who pulls back. Fewer than for one of the two cosines alone."""
MIN_AGREEMENT = 0.05
"""Below, the usual cosine between an update and the mean of all votes says little."""
PATIENCE = 50
"""Laps, arrivals of as many as there are clients, for which an exclusion stands that nothing confirms."""


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
    """Rejects a known client's update that is more than `limit` times as long as it may count."""

    name = "too-long"

    def __init__(self, limit: float = 8.0) -> None:
        self._limit = limit

    def judge(self, arrival: Arrival) -> str | None:
        return Reason.TOO_LONG if arrival.known and arrival.excess > self._limit else None


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


class PullsBack(Judge, Votes):
    """Rejects, and excludes from voting, a client that keeps pulling back from where all others pull.

    Two cosines are looked at, both averaged over time, because each is fooled alone.

    - Between a client's updates and the mean of all votes. Malicious clients lie far below all others: by `limit`
      spreads below the median, as `consensus` measures it. But so does one who asks for what nobody else knows yet.
    - Between what a client keeps asking for and what all others keep asking for. One who knows something else points
      elsewhere; one who pulls back points back: below minus `share` times the median.

    Who is found by both is excluded until the first cosine reaches the median. While even the usual client hardly pulls
    along, neither says much: nobody is excluded then, and who is excluded stays so for PATIENCE laps, and until its
    first cosine is no longer far below all others'. A client that came often while the model settled, and was taken for
    one who pulls back, gets its vote back so.

    What this rejects is remembered: such a client may come back, and is then measured from where it was.

    decay  weight left of a client's first average after its next update
    """

    name = "consensus"
    reads_agreement = True
    remembers = True

    def __init__(self, directions: Directions, limit: float = 4.0, share: float = 0.75, decay: float = 0.9) -> None:
        self._directions = directions
        self._limit = limit
        self._share = share
        self._decay = decay
        self._averages: dict[ClientId, tuple[float, int]] = {}  # with the number of updates
        self._agreements, self._pulls = ClientLog(), ClientLog()
        self._opposing: dict[ClientId, int] = {}  # with the arrival at which both cosines last said so

    def judge(self, arrival: Arrival) -> str | None:
        client = arrival.client
        if arrival.agreement is not None and arrival.sketch is not None:
            average, count = self._averages[client] = self._after(client, arrival.agreement)
            pull = self._pull(client, arrival.sketch.astype(np.float32))
            arrival.evidence.update(agreement=average, pull=pull)
            if count >= 2:
                self._agreements.admit(average, client, arrival.counts)
                self._pulls.admit(pull, client, arrival.counts)
                self._exclude(client, self._opposes(client, average, pull), average, arrival.number)
        return Reason.AGAINST_CONSENSUS if client in self._opposing else None

    def would_oppose(self, client: ClientId, agreement: float, sketch: Vector) -> bool:
        """Whether such an update would make its sender one who pulls back, all others staying as they are."""
        average, count = self._after(client, agreement)
        opposes = self._opposes(client, average, self._pull(client, sketch))
        return count >= 2 and (client in self._opposing if opposes is None else opposes)

    def excluded(self) -> Mapping[ClientId, str]:
        return dict.fromkeys(self._opposing, Reason.AGAINST_CONSENSUS)

    def weight(self, client: ClientId) -> float:
        return 0.0 if client in self._opposing else 1.0

    def forget(self, client: ClientId) -> None:
        self._averages.pop(client, None)
        self._agreements.forget(client)
        self._pulls.forget(client)
        self._opposing.pop(client, None)

    def state_dict(self) -> StateDict:
        return {
            "clients": np.array(list(self._averages), np.int64),
            "averages": np.array([average for average, _ in self._averages.values()], np.float64),
            "counts": np.array([count for _, count in self._averages.values()], np.int64),
            "opposing": np.array(list(self._opposing.items()), np.int64).reshape(-1, 2),
            **scoped("agreements", self._agreements.state_dict()),
            **scoped("pulls", self._pulls.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        averages, counts = np.asarray(state["averages"], np.float64).tolist(), np.asarray(state["counts"]).tolist()
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._averages = dict(zip(clients, zip(averages, counts, strict=True), strict=True))
        self._opposing = {ClientId(client): last for client, last in np.asarray(state["opposing"]).tolist()}
        self._agreements.load_state_dict(unscoped("agreements", state))
        self._pulls.load_state_dict(unscoped("pulls", state))

    def _after(self, client: ClientId, agreement: float) -> tuple[float, int]:
        """The client's average once this update counts, and of how many; its first ones count alike."""
        before, count = self._averages.get(client, (0.0, 0))
        weight = max(1.0 / (count + 1), 1.0 - self._decay)
        return before + weight * (agreement - before), count + 1

    def _pull(self, client: ClientId, sketch: Vector) -> float:
        """The cosine between what the client keeps asking for, this update included, and what all others do."""
        return self._directions.agreement(client, self._directions.after(client, sketch))

    def _opposes(self, client: ClientId, average: float, pull: float) -> bool | None:
        """Whether the client pulls back; None if nobody can tell now."""
        usual = self._agreements.quantile(0.5)
        if len(self._agreements) < FEWEST or usual < MIN_AGREEMENT:
            return None
        if client in self._opposing:
            return average < usual
        return self._is_far_below(average) and pull < -self._share * self._pulls.quantile(0.5)

    def _is_far_below(self, average: float) -> bool:
        """Whether a client with this average lies far below all others."""
        usual = self._agreements.quantile(0.5)
        return average < usual - self._limit * max(self._agreements.quantile(0.75) - usual, MIN_SPREAD)

    def _exclude(self, client: ClientId, opposes: bool | None, average: float, number: int) -> None:
        """Exclude the client, or let it vote again; if nobody can tell, leave it as it is for a while."""
        if opposes is None and client in self._opposing:
            waited = number - self._opposing[client] > PATIENCE * len(self._averages)
            opposes = None if not waited or self._is_far_below(average) else False
        if opposes:
            self._opposing[client] = number
        elif opposes is not None:
            self._opposing.pop(client, None)
        if opposes is not None:
            self._directions.leave_out(client, opposes)
