"""What is usual among clients: one number of each, in order. Who sends often has one entry, like everyone."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from secureafl.types import Array, ClientId, StateDict


class ClientLog:
    """The last value of each of the `window` clients heard last, in order. `tolerance` times a percentile passes.

    An entry costs a search and a move of at most `window` numbers, however many clients there are.
    """

    def __init__(self, percentile: float = 0.5, window: int | None = 1000, tolerance: float = 1.0) -> None:
        self._percentile = percentile
        self._window = window
        self._tolerance = tolerance
        self._sorted: array[float] = array("d")
        self._last: OrderedDict[ClientId, float] = OrderedDict()  # the client heard last comes last

    def __len__(self) -> int:
        return len(self._sorted)

    def quantile(self, share: float) -> float:
        """The smallest value that more than this share of all are below or at; infinite if there is none."""
        index = math.floor(share * len(self._sorted))
        return self._sorted[index] if index < len(self._sorted) else math.inf

    def of(self, client: ClientId) -> float | None:
        """The client's value; None if it has no entry."""
        return self._last.get(client)

    def threshold(self) -> float:
        """The largest value that would pass now; infinite while the log is empty or the percentile is 1."""
        return self._tolerance * self.quantile(self._percentile)

    def admit(self, value: float, client: ClientId, counts: bool = True) -> bool:
        """Whether the value passes; then it takes the place of the client's last one, if the client counts. An infinite
        one does neither.
        """
        if math.isinf(value):
            return False
        passes = value <= self.threshold()
        if not counts:
            return passes
        self.forget(client)
        insort(self._sorted, value)
        self._last[client] = value
        if self._window is not None and len(self._last) > self._window:
            self.forget(next(iter(self._last)))
        return passes

    def forget(self, client: ClientId) -> None:
        """Drop the client's entry, if there is one."""
        value = self._last.pop(client, None)
        if value is not None:
            del self._sorted[bisect_left(self._sorted, value)]

    def state_dict(self) -> StateDict:
        return {
            "clients": np.array(list(self._last), np.int64),
            "values": np.array(list(self._last.values()), np.float64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients, values = np.asarray(state["clients"]).tolist(), np.asarray(state["values"]).tolist()
        self._last = OrderedDict((ClientId(client), value) for client, value in zip(clients, values, strict=True))
        self._sorted = array("d", sorted(values))
