"""One number of each client, averaged over its updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.defenses.secureafl.columns import Column
from secureafl.types import Array, ClientId, StateDict


class Averages:
    """Each client's average, and of how many updates it is. The first ones count alike.

    decay  weight left of a client's average after its next update
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._averages = Column(np.float64, 0.0)
        self._counts = Column(np.int64, 0)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def of(self, client: ClientId) -> float:
        """The client's average; 0 before its first update."""
        return self._averages[client]

    def count(self, client: ClientId) -> int:
        """How many updates it is made of."""
        return self._counts[client]

    def after(self, client: ClientId, value: float) -> float:
        """What the client's average would be with this value."""
        return self._with(self._averages[client], self._counts[client], value)

    def hear(self, client: ClientId, value: float) -> float:
        """Take in a value; returns the average with it."""
        count = self._counts[client]
        self._averages[client] = average = self._with(self._averages[client], count, value)
        self._counts[client] = count + 1
        self._size += count == 0
        return average

    def _with(self, before: float, count: int, value: float) -> float:
        return before + max(1.0 / (count + 1), 1.0 - self._decay) * (value - before)

    def forget(self, client: ClientId) -> None:
        """Drop the client's average."""
        self._size -= self._counts[client] > 0
        del self._averages[client], self._counts[client]

    def state_dict(self) -> StateDict:
        clients = self._counts.clients()
        return {
            "clients": clients,
            "averages": self._averages.values[clients],
            "counts": self._counts.values[clients],
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = np.asarray(state["clients"], np.int64)
        self._averages.load(clients, np.asarray(state["averages"], np.float64))
        self._counts.load(clients, np.asarray(state["counts"], np.int64))
        self._size = len(clients)
