"""One number of each client, averaged over its updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.types import Array, ClientId, StateDict


class Averages:
    """Each client's average, and of how many updates it is. The first ones count alike.

    decay  weight left of a client's average after its next update
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._averages: dict[ClientId, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._averages)

    def of(self, client: ClientId) -> float:
        """The client's average; 0 before its first update."""
        return self._averages.get(client, _NONE)[0]

    def count(self, client: ClientId) -> int:
        """How many updates it is made of."""
        return self._averages.get(client, _NONE)[1]

    def counted(self, least: int) -> list[tuple[ClientId, float]]:
        """The averages of clients with so many updates or more."""
        return [(client, average) for client, (average, count) in self._averages.items() if count >= least]

    def after(self, client: ClientId, value: float) -> float:
        """What the client's average would be with this value."""
        before, count = self._averages.get(client, _NONE)
        return before + max(1.0 / (count + 1), 1.0 - self._decay) * (value - before)

    def hear(self, client: ClientId, value: float) -> float:
        """Take in a value; returns the average with it."""
        average = self.after(client, value)
        self._averages[client] = average, self.count(client) + 1
        return average

    def forget(self, client: ClientId) -> None:
        """Drop the client's average."""
        self._averages.pop(client, None)

    def state_dict(self) -> StateDict:
        return {
            "clients": np.array(list(self._averages), np.int64),
            "averages": np.array([average for average, _ in self._averages.values()], np.float64),
            "counts": np.array([count for _, count in self._averages.values()], np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = map(ClientId, np.asarray(state["clients"]).tolist())
        averages, counts = np.asarray(state["averages"], np.float64).tolist(), np.asarray(state["counts"]).tolist()
        self._averages = dict(zip(clients, zip(averages, counts, strict=True), strict=True))


_NONE = (0.0, 0)
