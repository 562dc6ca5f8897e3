"""What the operator says of clients, by name: for whom they vouch, and what votes weigh. Never what a client says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from secureafl.defenses.secureafl.stages import Votes
from secureafl.types import ClientId


class OperatorWeights(Votes):
    """Weighs the votes of some clients as their operator has set it.

    weights  by name; a vote that is not named weighs 1
    """

    name = "operator"

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._by_name = dict(weights)
        self._weights: dict[ClientId, float] = {}

    def meet(self, client: ClientId, name: str) -> None:
        if name in self._by_name:
            self._weights[client] = self._by_name[name]

    def weight(self, client: ClientId) -> float:
        return self._weights.get(client, 1.0)


class Vouched:
    """Clients that their operator vouches for: they are exempt from the test for groups."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)
        self._clients: set[ClientId] = set()

    def meet(self, client: ClientId, name: str) -> None:
        """The client of this number has this name."""
        if name in self._names:
            self._clients.add(client)

    def __contains__(self, client: ClientId) -> bool:
        return client in self._clients
