"""Who has no vote: clients rejected too often in a row. Two more stages of this kind stand beside: `AgainstConsensus`
in `judges`, `Groups` in `collusion`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.types import Array, ClientId, StateDict

REJECTED_IN_A_ROW = "rejected-in-a-row"


class RejectedInARow(Votes):
    """Excludes a client after `limit` rejections in a row, until it is accepted again."""

    name = "streaks"

    def __init__(self, limit: int = 3) -> None:
        self._limit = limit
        self._rejections: Counter[ClientId] = Counter()  # in a row, per client

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        self._rejections[arrival.client] = 0 if accepted else self._rejections[arrival.client] + 1

    def excluded(self) -> Mapping[ClientId, str]:
        return {client: REJECTED_IN_A_ROW for client, count in self._rejections.items() if count >= self._limit}

    def weight(self, client: ClientId) -> float:
        return 0.0 if self._rejections[client] >= self._limit else 1.0

    def forget(self, client: ClientId) -> None:
        self._rejections.pop(client, None)

    def state_dict(self) -> StateDict:
        return {"rejections": np.array(sorted(self._rejections.items()), np.int64).reshape(-1, 2)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._rejections = Counter({ClientId(k): c for k, c in np.asarray(state["rejections"]).tolist()})
