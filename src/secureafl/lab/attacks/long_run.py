"""What honest clients keep asking for: the running average of each one's updates, all scaled to length 1.

Noise of single mini-batches fades from it, and what is left is the client's own. It is what defenses compare that look
for colluders (`secureafl.defenses.secureafl.collusion`), so it is what an attacker copies to be taken for someone else.

    a <- a + max(1 / k, 1 - decay) (u / |u| - a)        at the k-th update u
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from secureafl.lab.attacks.attack import length
from secureafl.types import Array, ClientId, StateDict, Vector


class LongRun:
    """Averages of those clients that were seen, or of a chosen few."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._averages: dict[ClientId, Vector] = {}
        self._counts: dict[ClientId, int] = {}
        self._kept: frozenset[ClientId] | None = None

    @property
    def clients(self) -> list[ClientId]:
        """Who is remembered, by number."""
        return sorted(self._averages)

    def take(self, client: ClientId, update: Vector) -> None:
        """Count one update; one without a direction counts as nothing."""
        if self._kept is not None and client not in self._kept:
            return
        size = length(update)
        if not np.isfinite(size) or size == 0.0:
            return
        direction = np.asarray(update / size, np.float32)
        count = self._counts.get(client, 0) + 1
        before = self._averages.get(client)
        weight = np.float32(max(1.0 / count, 1.0 - self._decay))
        self._averages[client] = direction if before is None else before + weight * (direction - before)
        self._counts[client] = count

    def keep(self, clients: Collection[ClientId]) -> None:
        """Forget everyone else, now and later."""
        if self._kept is None:
            self._kept = frozenset(clients)
            self._averages = {client: row for client, row in self._averages.items() if client in self._kept}
            self._counts = {client: self._counts[client] for client in self._averages}

    def direction(self, client: ClientId) -> Vector | None:
        """(d,) of length 1; None of a client that was not heard, or whose updates cancel out."""
        average = self._averages.get(client)
        size = 0.0 if average is None else length(average)
        return None if average is None or size == 0.0 else np.asarray(average / size, np.float32)

    def state_dict(self) -> StateDict:
        clients = self.clients
        rows = [self._averages[client] for client in clients]
        return {
            "clients": np.array(clients, np.int64),
            "counts": np.array([self._counts[client] for client in clients], np.int64),
            "rows": np.stack(rows) if rows else np.empty((0, 0), np.float32),
            "kept": np.array(sorted(self._kept or ()), np.int64),
            "chosen": np.array(self._kept is not None, np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._averages = dict(zip(clients, np.array(state["rows"], np.float32), strict=True))
        self._counts = dict(zip(clients, np.asarray(state["counts"]).tolist(), strict=True))
        kept = frozenset(ClientId(client) for client in np.asarray(state["kept"]).tolist())
        self._kept = kept if int(np.asarray(state["chosen"], np.int64)) else None
