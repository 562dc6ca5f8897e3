"""Who keeps pulling back from where all others pull.

Three cosines are looked at, averaged over time, because each is fooled alone.

- Agreement: between a client's updates and the mean of all votes. Malicious clients lie far below all others: `limit`
  spreads below the median. But so does one who asks for what nobody else knows yet.
- Pull: between what a client keeps asking for and what all others keep asking for. One who knows something else points
  elsewhere; one who pulls back points back: below minus `share` times the median.
- Curvature: between how a client's update changed since its last one, and how the model did. Who lowers a loss pushes
  back from wherever the model went, whatever the loss; who raises one pushes on. The other two need a model that is on
  its way. This one needs gradients that change with the model, and tells all along once they do.

Excluded is who is found by agreement and pull, or by curvature: below minus BACK times the median. It comes back once
its agreement is no longer far below all others', and its curvature is not negative. No more is asked of it, as one that
comes often sees the model move little between its updates.

While the usual client hardly agrees with the mean, or hardly pushes back, that cosine says nothing, and nothing follows
from it. Where no curvature tells, an exclusion ends after PATIENCE laps for who is not far below all others: else a
client that came often while the model settled, and so saw before others that it had gone too far, would stay out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.averages import Averages
from secureafl.defenses.secureafl.consensus import MIN_SPREAD
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Judge, Votes
from secureafl.types import Array, ClientId, Reason, StateDict, Vector

FEWEST = 5
"""Clients that it takes to say what is usual. Fewer than for one of the cosines alone."""
MIN_UPDATES, MIN_CURVATURES = 3, 4
"""Updates of a client that it takes to say where it pulls, and changes of them to say that it pushes on."""
MIN_AGREEMENT = MIN_CURVATURE = 0.05
"""Below, the usual cosine says little."""
BACK = 0.5
"""Share of the usual curvature."""
PATIENCE = 50
"""Laps, arrivals of as many as there are clients, for which an exclusion stands that nothing confirms."""


class PullsBack(Judge, Votes):
    """Rejects, and excludes from voting, a client that keeps pulling back from where all others pull.

    What it rejects is remembered: such a client may come back, and is then measured from where it was.

    decay  weight left of a client's average agreement and curvature after its next update
    """

    name = "consensus"
    reads_agreement = True
    remembers = True

    def __init__(self, directions: Directions, limit: float = 4.0, share: float = 0.75, decay: float = 0.9) -> None:
        self._directions = directions
        self._limit = limit
        self._share = share
        self._agreement, self._curvature = Averages(decay), Averages(decay)
        self._agreements, self._pulls, self._curvatures = ClientLog(), ClientLog(), ClientLog()
        self._opposing: dict[ClientId, int] = {}  # with the arrival at which this was last told
        self._now = 0

    def judge(self, arrival: Arrival) -> str | None:
        client, self._now = arrival.client, arrival.number
        if arrival.curvature is not None:
            arrival.evidence["curvature"] = curvature = self._curvature.hear(client, arrival.curvature)
            self._curvatures.admit(curvature, client, arrival.counts)
        if arrival.agreement is not None and arrival.sketch is not None:
            agreement = self._agreement.hear(client, arrival.agreement)
            pull = self._pull(client, np.asarray(arrival.sketch, np.float32))
            arrival.evidence.update(agreement=agreement, pull=pull)
            if self._agreement.count(client) >= 2:
                self._agreements.admit(agreement, client, arrival.counts)
                self._pulls.admit(pull, client, arrival.counts)
            if self._agreement.count(client) >= MIN_UPDATES:
                self._exclude(client, self._opposes(client, agreement, pull, self._curvature.of(client)))
        return Reason.AGAINST_CONSENSUS if client in self._opposing else None

    def would_oppose(self, client: ClientId, agreement: float, sketch: Vector, curvature: float | None) -> bool:
        """Whether such an update would make its sender one who pulls back, all others staying as they are."""
        if self._agreement.count(client) + 1 < MIN_UPDATES:
            return False
        curved = self._curvature.of(client) if curvature is None else self._curvature.after(client, curvature)
        return self._opposes(client, self._agreement.after(client, agreement), self._pull(client, sketch), curved)

    def excluded(self) -> Mapping[ClientId, str]:
        return dict.fromkeys(self._opposing, Reason.AGAINST_CONSENSUS)

    def weight(self, client: ClientId) -> float:
        return 0.0 if client in self._opposing else 1.0

    def forget(self, client: ClientId) -> None:
        for kept in self._parts().values():
            kept.forget(client)
        self._opposing.pop(client, None)

    def state_dict(self) -> StateDict:
        state: StateDict = {
            "now": np.array(self._now, np.int64),
            "opposing": np.array(list(self._opposing.items()), np.int64).reshape(-1, 2),
        }
        for name, part in self._parts().items():
            state |= scoped(name, part.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(unscoped(name, state))
        self._now = int(np.asarray(state["now"], np.int64))
        self._opposing = {ClientId(client): last for client, last in np.asarray(state["opposing"]).tolist()}

    def _parts(self) -> dict[str, Averages | ClientLog]:
        """All that is kept of clients, by name."""
        return {
            "agreement": self._agreement,
            "curvature": self._curvature,
            "agreements": self._agreements,
            "pulls": self._pulls,
            "curvatures": self._curvatures,
        }

    def _pull(self, client: ClientId, sketch: Vector) -> float:
        """The cosine between what the client keeps asking for, this update included, and what all others do."""
        return self._directions.agreement(client, self._directions.after(client, sketch))

    def _opposes(self, client: ClientId, agreement: float, pull: float, curvature: float) -> bool:
        """Whether the client pulls back, or still does."""
        usual = self._curvatures.quantile(0.5)
        told = len(self._curvatures) >= FEWEST and usual >= MIN_CURVATURE
        if client in self._opposing:
            if self._is_far_below(agreement):
                return True
            return curvature < 0.0 if told else self._is_recent(client)
        if told and self._curvature.count(client) >= MIN_CURVATURES and curvature < -BACK * usual:
            return True
        if not self._agreement_tells():
            return False
        return self._is_far_below(agreement) and pull < -self._share * self._pulls.quantile(0.5)

    def _agreement_tells(self) -> bool:
        return len(self._agreements) >= FEWEST and self._agreements.quantile(0.5) >= MIN_AGREEMENT

    def _is_recent(self, client: ClientId) -> bool:
        """Whether the client was found to pull back not long ago."""
        return self._now - self._opposing[client] <= PATIENCE * len(self._agreement)

    def _is_far_below(self, agreement: float) -> bool:
        """Whether a client that agrees so much lies far below all others."""
        usual = self._agreements.quantile(0.5)
        return agreement < usual - self._limit * max(self._agreements.quantile(0.75) - usual, MIN_SPREAD)

    def _exclude(self, client: ClientId, opposes: bool) -> None:
        """Exclude the client, or let it vote again."""
        if not opposes:
            self._opposing.pop(client, None)
        elif client not in self._opposing or self._agreement_tells():
            self._opposing[client] = self._now
        self._directions.leave_out(client, opposes)
