"""How much of an update counts: a first one is clipped, later ones are held to what is usual."""

from __future__ import annotations

import math
from collections.abc import Mapping

from secureafl.defenses.lipschitz import FactorLog
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Limit
from secureafl.types import Array, ClientId, StateDict


class FirstContact(Limit):
    """A client's first update counts as at most `clip_norm` long, the paper's G; later ones as they are."""

    name = "length"

    def __init__(self, clip_norm: float = 50.0) -> None:
        self._clip_norm = clip_norm

    def limit(self, arrival: Arrival) -> float:
        return math.inf if arrival.known else self._clip_norm


class Usual(Limit):
    """At most `factor` times the median of the last `window` arrivals, or clients, and never more than `clip_norm`."""

    def __init__(
        self,
        factor: float = 1.0,
        window: int | None = 1000,
        clip_norm: float = 50.0,
        *,
        per_client: bool = False,
    ) -> None:
        """`per_client` counts each client's last value once, instead of every arrival's."""
        self._factor = factor
        self._clip_norm = clip_norm
        self._log = (ClientLog if per_client else FactorLog)(0.5, window)

    @property
    def present(self) -> float:
        """What the next arrival's limit will be."""
        return min(self._clip_norm, self._factor * self._log.threshold())

    def _against(self, value: float, arrival: Arrival) -> float:
        """The limit from those before; then the value joins them."""
        limit = self.present
        self._log.admit(value, arrival.client, arrival.counts)
        return limit

    def forget(self, client: ClientId) -> None:
        self._log.forget(client)

    def state_dict(self) -> StateDict:
        return self._log.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._log.load_state_dict(state)


class UsualLength(Usual):
    """An update counts as at most so many times as long as is usual."""

    name = "length"

    def limit(self, arrival: Arrival) -> float:
        return self._against(arrival.norm, arrival)


class UsualChange(Usual):
    """An update counts as at most so many times the usual change away from its sender's last one."""

    name = "change"

    def limit(self, arrival: Arrival) -> float:
        return self._against(arrival.delta_change, arrival) if arrival.known else math.inf
