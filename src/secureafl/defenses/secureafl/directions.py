"""What each client keeps asking for: the average of its updates' directions over time, as a sketch.

Each update is scaled to unit length and sketched: sums over its coordinates with random signs, which keep cosines up to
about 1 / sqrt(WIDTH). A client's sketches are averaged. Noise fades, and so do masks that cancel out.

The signs follow from a secret seed: who knows them can fill its sketch with a small addition of its own.

Shapes: d = parameters, w = WIDTH.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from secureafl import kernels
from secureafl.defenses.secureafl.stages import Arrival, Signs, Votes
from secureafl.types import Array, ClientId, StateDict, Vector

WIDTH = 512
"""Numbers in a sketch."""


class Directions(Votes):
    """Every client's average sketch.

    decay  weight left of a client's average after its next update
    seed   of the signs: secret
    """

    name = "directions"

    def __init__(self, dim: int, decay: float = 0.95, seed: int = 0) -> None:
        self._decay = decay
        self.signs = draw_signs(dim, seed)
        self._averages: dict[ClientId, Vector] = {}
        self._num_heard: dict[ClientId, int] = {}
        self._left_out: set[ClientId] = set()
        self._counted: dict[ClientId, None] = {}  # in the order in which they came
        self._sum = np.zeros(WIDTH)  # of those that count

    def __len__(self) -> int:
        return len(self._averages)

    def __contains__(self, client: ClientId) -> bool:
        return client in self._averages

    @property
    def counted(self) -> list[ClientId]:
        """Clients whose directions count: not those left out, nor newcomers while they are too many."""
        return list(self._counted)

    @property
    def num_counted(self) -> int:
        """How many they are."""
        return len(self._counted)

    def of(self, client: ClientId) -> Vector:
        """(w,) what the client keeps asking for."""
        return self._averages[client]

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        if remembered and arrival.sketch is not None:
            self._take(arrival.client, arrival.sketch.astype(np.float32), arrival.counts)

    def _take(self, client: ClientId, sketch: Vector, counts: bool) -> None:
        after = self.after(client, sketch)
        self._count(client, False)
        self._averages[client] = after
        self._count(client, counts and client not in self._left_out)
        self._num_heard[client] = self._num_heard.get(client, 0) + 1

    def after(self, client: ClientId, sketch: Vector) -> Vector:
        """The client's average once this update is taken in; its first ones count alike."""
        before = self._averages.get(client)
        if before is None:
            return sketch
        weight = np.float32(max(1.0 / (self._num_heard[client] + 1), 1.0 - self._decay))
        return before + weight * (sketch - before)

    def agreement(self, client: ClientId, direction: Vector) -> float:
        """The cosine between a direction, in place of the client's own, and the sum of all others' that count."""
        own = self._averages.get(client)
        others = self._sum - own if own is not None and client in self._counted else self._sum
        toward = others.astype(np.float32)
        lengths = kernels.dot(direction, direction) * kernels.dot(toward, toward)
        return kernels.dot(direction, toward) / math.sqrt(lengths) if lengths > 0.0 else 0.0

    def leave_out(self, client: ClientId, leave_out: bool) -> None:
        """Let the client's direction count no longer, or again from its next update on."""
        if leave_out:
            self._left_out.add(client)
            self._count(client, False)
        else:
            self._left_out.discard(client)

    def _count(self, client: ClientId, counts: bool) -> None:
        """Put the client's average into the sum, or take it out."""
        if counts == (client in self._counted):
            return
        if counts:
            self._counted[client] = None
            self._sum += self._averages[client]
        else:
            del self._counted[client]
            self._sum -= self._averages[client]

    def forget(self, client: ClientId) -> None:
        self._count(client, False)
        self._left_out.discard(client)
        self._averages.pop(client, None)
        self._num_heard.pop(client, None)

    def state_dict(self) -> StateDict:
        clients = list(self._averages)
        return {
            "clients": np.array(clients, np.int64),
            "averages": np.array([self._averages[client] for client in clients], np.float32).reshape(-1, WIDTH),
            "num_heard": np.array([self._num_heard[client] for client in clients], np.int64),
            "left_out": np.array(sorted(self._left_out), np.int64),
            "counted": np.array(list(self._counted), np.int64),
            "sum": self._sum.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._averages = dict(zip(clients, np.array(state["averages"], np.float32), strict=True))
        self._num_heard = dict(zip(clients, np.asarray(state["num_heard"]).tolist(), strict=True))
        self._left_out = {ClientId(client) for client in np.asarray(state["left_out"]).tolist()}
        self._counted = dict.fromkeys(map(ClientId, np.asarray(state["counted"]).tolist()))
        self._sum = np.array(state["sum"], np.float64)


def draw_signs(dim: int, seed: int) -> Signs:
    """(d,) 1 or -1 for each coordinate."""
    lots = np.random.Generator(np.random.Philox(key=[seed, _SIGNS]))
    return lots.integers(0, 2, dim, np.int8) * np.int8(2) - np.int8(1)


_SIGNS = 1  # the stream of these lots, apart from others of the same seed
