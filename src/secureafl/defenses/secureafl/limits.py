"""How much of an update counts: a first one is clipped, later ones are held to what is usual."""

from __future__ import annotations

import math
from collections.abc import Mapping

from secureafl.defenses.lipschitz import FactorLog
from secureafl.defenses.secureafl.stages import Arrival, Limit
from secureafl.types import Array, StateDict


class FirstContact(Limit):
    """A client's first update counts as at most `clip_norm` long, the paper's G; later ones as they are."""

    name = "length"

    def __init__(self, clip_norm: float = 50.0) -> None:
        self._clip_norm = clip_norm

    def limit(self, arrival: Arrival) -> float:
        return math.inf if arrival.known else self._clip_norm


class _Usual(Limit):
    """At most `factor` times the median of the last `window` arrivals, and never more than `clip_norm`."""

    def __init__(self, factor: float = 1.0, window: int | None = 1000, clip_norm: float = 50.0) -> None:
        self._factor = factor
        self._clip_norm = clip_norm
        self._log = FactorLog(0.5, window)

    def _against(self, value: float) -> float:
        """The limit from those before; then the value joins them."""
        limit = min(self._clip_norm, self._factor * self._log.threshold())
        self._log.admit(value)
        return limit

    def state_dict(self) -> StateDict:
        return self._log.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._log.load_state_dict(state)


class UsualLength(_Usual):
    """An update counts as at most so many times as long as is usual."""

    name = "length"

    def limit(self, arrival: Arrival) -> float:
        return self._against(arrival.norm)


class UsualChange(_Usual):
    """An update counts as at most so many times the usual change away from its sender's last one."""

    name = "change"

    def limit(self, arrival: Arrival) -> float:
        return self._against(arrival.delta_change) if arrival.known else math.inf
