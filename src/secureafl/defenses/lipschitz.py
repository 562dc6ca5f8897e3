"""How abruptly a client changed, and whether that is unusual: Eqs. (2) and (3) of the paper."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping

import numpy as np

from secureafl.types import Array, ClientId, StateDict


def lipschitz_factor(delta_change: float, param_change: float) -> float:
    """lambda = |g - g_ref| / |w - w_ref|, Eq. (2).

    On an unchanged model the same update is perfectly smooth (0) and any other infinitely abrupt.
    """
    if param_change > 0.0:
        return delta_change / param_change
    return 0.0 if delta_change == 0.0 else math.inf


class FactorLog:
    """The paper's Q: every factor seen so far (or the last `window`), in order. `tolerance` times a percentile passes.

    The test of Eq. (3), "the new factor is at most the percentile of a log that already holds it", needs no
    interpolation: with N older entries q_0 <= ... <= q_{N-1} it is `factor <= q_{floor(percentile * N)}`.
    """

    def __init__(self, percentile: float, window: int | None = None, tolerance: float = 1.0) -> None:
        self._percentile = percentile
        self._window = window
        self._tolerance = tolerance
        self._sorted: array[float] = array("d")
        self._recent: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._sorted)

    def threshold(self) -> float:
        """The largest factor that would pass now; infinite while the log is empty or the percentile is 1."""
        index = math.floor(self._percentile * len(self._sorted))
        return self._tolerance * self._sorted[index] if index < len(self._sorted) else math.inf

    def admit(self, factor: float, client: ClientId | None = None, counts: bool = True) -> bool:
        """Whether the factor passes; then it joins the log, passed or not, whoever the client is and whether or not it
        counts elsewhere. An infinite one does neither.
        """
        if math.isinf(factor):
            return False
        passes = factor <= self.threshold()  # Eq. (3)
        insort(self._sorted, factor)
        if self._window is not None:
            self._recent.append(factor)
            if len(self._recent) > self._window:
                del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        return passes

    def forget(self, client: ClientId) -> None:
        """Nothing is known of clients here."""

    def state_dict(self) -> StateDict:
        return {
            "sorted": np.array(self._sorted, np.float64),
            "recent": np.array(self._recent, np.float64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._sorted = array("d", np.asarray(state["sorted"], np.float64).tolist())
        self._recent = deque(np.asarray(state["recent"], np.float64).tolist())
