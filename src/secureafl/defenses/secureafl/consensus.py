"""Whether a client pulls where the consensus pulls: the cosine between its updates and the median, averaged over time.

One update says little: mini-batch gradients of honest clients point almost anywhere, and their averages differ as
their data do. So a client is called opposing only if its average lies far below everyone's, measured by how far those
*above* the median lie from it: malicious clients below it cannot widen that.

    opposing  <=>  average < median - limit * max(spread, MIN_SPREAD)
    spread     =   median distance of those above the median from it

One who opposed comes back once it agrees as much as most do: at the median. Where it fell is not enough. Colluders who
push against the mean agree a little more as the model gets better and the mean fades, though never as much as others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secureafl.types import Array, ClientId, StateDict

MIN_CLIENTS = 10
"""Clients with two updates or more that it takes to say what is usual."""
MIN_SPREAD = 0.05
"""Differences between averages that are never held against anyone."""


class Agreement:
    """Every client's average agreement with the median of the step before its update arrived.

    limit  spreads below the median at which a client is against the consensus
    decay  weight left of a client's average after its next update
    """

    def __init__(self, limit: float, decay: float) -> None:
        self._limit = limit
        self._decay = decay
        self._averages: dict[ClientId, float] = {}
        self._counts: dict[ClientId, int] = {}
        self._opposing: set[ClientId] = set()

    @property
    def opposing(self) -> frozenset[ClientId]:
        """Who pulls against the consensus."""
        return frozenset(self._opposing)

    def average(self, client: ClientId) -> float:
        """The client's average agreement; 0 before its first update."""
        return self._averages.get(client, 0.0)

    def hear(self, client: ClientId, cosine: float) -> None:
        """Count an update that agrees so much."""
        self._averages[client] = self._after(client, cosine)
        self._counts[client] = self._counts.get(client, 0) + 1
        self._compare()

    def would_oppose(self, client: ClientId, cosine: float) -> bool:
        """Whether such an update would make its sender one who opposes, all others staying as they are."""
        if self._counts.get(client, 0) < 1:
            return False
        limits = self._limits()
        return limits is not None and self._after(client, cosine) < limits[client in self._opposing]

    def state_dict(self) -> StateDict:
        clients = list(self._averages)
        return {
            "clients": np.array(clients, np.int64),
            "averages": np.array([self._averages[client] for client in clients], np.float64),
            "counts": np.array([self._counts[client] for client in clients], np.int64),
            "opposing": np.array(sorted(self._opposing), np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._averages = dict(zip(clients, np.asarray(state["averages"]).tolist(), strict=True))
        self._counts = dict(zip(clients, np.asarray(state["counts"]).tolist(), strict=True))
        self._opposing = {ClientId(client) for client in np.asarray(state["opposing"]).tolist()}

    def _after(self, client: ClientId, cosine: float) -> float:
        """The client's average once this update counts; its first ones count alike."""
        weight = max(1.0 / (self._counts.get(client, 0) + 1), 1.0 - self._decay)
        before = self.average(client)
        return before + weight * (cosine - before)

    def _compare(self) -> None:
        limits = self._limits()
        if limits is not None:
            self._opposing = {
                client for client in self._heard_twice() if self._averages[client] < limits[client in self._opposing]
            }

    def _limits(self) -> tuple[float, float] | None:
        """Below which average one becomes opposing, and below which one stays it."""
        averages = np.array([self._averages[client] for client in self._heard_twice()])
        if len(averages) < MIN_CLIENTS:
            return None
        median = float(np.median(averages))
        spread = max(float(np.median(averages[averages >= median])) - median, MIN_SPREAD)
        return median - self._limit * spread, median

    def _heard_twice(self) -> list[ClientId]:
        return [client for client, count in self._counts.items() if count >= 2]
