"""Who has no vote: clients rejected too often in a row. More stages of this kind stand beside: `PullsBack` in
`opposition`, `AgainstConsensus` in `judges`, `Groups` in `collusion`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.types import Array, ClientId, StateDict

REJECTED_IN_A_ROW = "rejected-in-a-row"


class RejectedInARow(Votes):
    """Excludes a client after `limit` rejections in a row, until it is accepted again."""

    name = "streaks"

    def __init__(self, limit: int = 3) -> None:
        self._limit = limit
        self._rejections = Column(np.int64, -1)  # in a row; below 0 for who was never heard

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        self._rejections[arrival.client] = 0 if accepted else max(0, self._rejections[arrival.client]) + 1

    def excluded(self) -> Mapping[ClientId, str]:
        clients = np.flatnonzero(self._rejections.values >= self._limit).tolist()
        return dict.fromkeys(map(ClientId, clients), REJECTED_IN_A_ROW)

    def weight(self, client: ClientId) -> float:
        return 0.0 if self._rejections[client] >= self._limit else 1.0

    def forget(self, client: ClientId) -> None:
        del self._rejections[client]

    def state_dict(self) -> StateDict:
        return {"rejections": self._rejections.pairs()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._rejections.load_pairs(state["rejections"])
