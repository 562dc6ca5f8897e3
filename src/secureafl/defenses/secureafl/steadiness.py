"""How steadily a client asks for the same, compared with the usual client.

An update of a few samples is mostly noise: what two updates of an honest client have in common is small beside their
lengths. Who is malicious need not be noisy. Ten who send the same again and again, each update as long as is usual, pull
harder in the long run than forty whose noise cancels. No limit on single updates shows that; their average does:

    steadiness = sqrt(mean cosine between two of the client's recent updates)
    weight     = min(1, limit usual / steadiness)         usual: the median of all clients'

So no client moves the model in the long run by more than `limit` times as much as the usual client does, whatever it
sends: adding noise to an update makes it less steady, and shortens what it steadily asks for by as much. Where updates
carry little noise, as after an epoch of local training, everyone is steady, and the limit changes nothing.

`directions` has the averages u = sum w_j u_j of a client's updates, each of length 1. With q = sum w_j^2,

    mean cosine = (|u|^2 - q) / (1 - q)                   about: lengths of sketches are right to some per cent
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.consensus import MIN_CLIENTS
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.types import Array, ClientId, StateDict

MIN_UPDATES = 10
"""Fewer say little about how steady a client is."""
MIN_STEADINESS = 0.1
"""The usual client is taken to be at least as steady: below, what is measured is mostly noise."""


class Steadiness(Votes):
    """Weighs a client by how steadily it asks for the same.

    directions  what clients keep asking for: it hears of an arrival first
    limit       so many times as steady as the usual client is not too steady
    """

    name = "steadiness"

    def __init__(self, directions: Directions, limit: float) -> None:
        self._directions = directions
        self._limit = limit
        self._values = Column(np.float64, -1.0)
        self._usual = ClientLog()

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        client = arrival.client
        if not remembered or self._directions.num_heard(client) < MIN_UPDATES:
            return
        arrival.evidence["steadiness"] = value = math.sqrt(max(0.0, self._directions.own_cosine(client)))
        self._values[client] = value
        self._usual.admit(value, client, arrival.counts)

    def weight(self, client: ClientId) -> float:
        value = self._values[client]
        if value <= 0.0 or len(self._usual) < MIN_CLIENTS:
            return 1.0
        return min(1.0, self._limit * max(MIN_STEADINESS, self._usual.quantile(0.5)) / value)

    def forget(self, client: ClientId) -> None:
        del self._values[client]
        self._usual.forget(client)

    def state_dict(self) -> StateDict:
        clients = self._values.clients()
        return {
            "clients": clients,
            "values": self._values.values[clients],
            **scoped("usual", self._usual.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._values.load(state["clients"], state["values"])
        self._usual.load_state_dict(unscoped("usual", state))
