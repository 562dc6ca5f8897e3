"""How a newcomer gets its vote: it grows with the updates that were accepted, and all newcomers together stay few.

A new name costs nothing, so a name alone is worth little. A client's weight is its accepted updates over `full_after`,
and whole from then on. Together newcomers have at most `share` of all votes, once there are MIN_CLIENTS others: whoever
comes when there is no room waits for its vote, but its updates count towards it.

Nor do they say what is usual, while those who came later than the first are more than that share: else many names, each
used once, would set every limit, and make a group of those who are alike because they are honest.

What is remembered of newcomers is limited too. Of more than `most` of them, the one heard least recently loses what is
kept of it but the number of its accepted updates.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.consensus import MIN_CLIENTS
from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.kernels import FULL
from secureafl.types import Array, ClientId, StateDict


class Newcomers(Votes):
    """Weighs clients by how often they were accepted.

    full_after  accepted updates that make a whole vote
    share       of all votes that newcomers may have together
    most        newcomers of whom more than that number is remembered
    """

    name = "newcomers"

    def __init__(self, full_after: int = 5, share: float = 0.2, most: int = 10_000) -> None:
        self._full_after = full_after
        self._share = share
        self._most = most
        self._accepted = Column(np.int32, 0)  # up to a whole vote
        self._num_established = 0  # clients with a whole vote
        self._founders = Column(np.bool_, False)  # heard before MIN_CLIENTS were established
        self._num_late = 0  # other newcomers
        self._votes: OrderedDict[ClientId, int] = (
            OrderedDict()
        )  # newcomers' weights in units of 1 / FULL, by last heard
        self._given = 0  # the sum of these

    def counts(self, client: ClientId) -> bool:
        if self._is_established(client) or self._founders[client] or self._num_established < MIN_CLIENTS:
            return True
        return self._num_late <= self._share / (1.0 - self._share) * self._num_established

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        client = arrival.client
        if self._is_established(client):
            return
        if self._num_established < MIN_CLIENTS:
            self._founders[client] = True
        self._drop(client)
        self._accepted[client] = count = self._accepted[client] + accepted
        if count >= self._full_after:
            self._num_established += 1
            return
        weight = min(count * FULL // self._full_after, max(0, self._limit() - self._given))
        self._votes[client] = weight
        self._given += weight
        self._num_late += not self._founders[client]

    def weight(self, client: ClientId) -> float:
        return 1.0 if self._is_established(client) else self._votes.get(client, 0) / FULL

    def one_too_many(self) -> ClientId | None:
        return next(iter(self._votes)) if len(self._votes) > self._most else None

    def forget(self, client: ClientId) -> None:
        self._drop(client)

    def _is_established(self, client: ClientId) -> bool:
        return self._accepted[client] >= self._full_after

    def _drop(self, client: ClientId) -> None:
        if client in self._votes:
            self._given -= self._votes.pop(client)
            self._num_late -= not self._founders[client]

    def state_dict(self) -> StateDict:
        return {
            "accepted": self._accepted.pairs(),
            "founders": self._founders.clients(),
            "votes": np.array(list(self._votes.items()), np.int64).reshape(-1, 2),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._accepted.load_pairs(state["accepted"])
        self._num_established = int((self._accepted.values >= self._full_after).sum())
        self._founders.load(np.asarray(state["founders"], np.int64), np.array(True))
        self._votes = OrderedDict((ClientId(client), votes) for client, votes in np.asarray(state["votes"]).tolist())
        self._given = sum(self._votes.values())
        self._num_late = sum(not self._founders[client] for client in self._votes)

    def _limit(self) -> int:
        """What newcomers may have together, in units of 1 / FULL."""
        if self._num_established < MIN_CLIENTS:
            return FULL * (len(self._votes) + 1)
        return math.floor(self._share / (1.0 - self._share) * self._num_established * FULL)
