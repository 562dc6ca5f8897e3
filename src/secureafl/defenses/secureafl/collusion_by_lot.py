"""The test for colluders of 0.1, for combiners that read everyone: a vote counts in full or, by lot, not at all.

Colluders share a goal, so over time what they send is alike. `collusion` has the default's test.

Each update is scaled to unit length and sketched: sums over its coordinates with random signs, which keep cosines up to
about 1 / sqrt(WIDTH). A client's sketches are averaged over time. That leaves what it keeps asking for; noise fades,
and so do masks that cancel out. What everyone asks for is taken away, the coordinate-wise median of all averages. Two
clients are alike if the cosine of what then remains exceeds `limit`.

Honest clients whose data are alike are alike too, so this is no proof of an attack. But a larger group gains nothing:
one k times as large as is usual has a k-th of a usual one's votes.

    share = min(1, usual / alike)^2      alike: clients like this one, itself included; usual: the median of that

At every step each client votes with the chance `share`, drawn by lot. C. Fung, C. J. M. Yoon and I. Beschastnikh, "The
Limitations of Federated Learning in Sybil Settings", RAID 2020, weigh clients by the likeness of summed updates; there
one who is unlike all others weighs most, here as much as anyone.

Who knows the signs can hide: a small addition of one's own along them fills the sketch. So `seed` should be secret.

Shapes: n = clients heard, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from secureafl import kernels
from secureafl.defenses.secureafl.consensus import MIN_CLIENTS
from secureafl.defenses.secureafl.directions import draw_signs
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.history import Float
from secureafl.types import Array, ClientId, StateDict, Vector


class GroupsByLot(Votes):
    """Every client's average sketch, and how many others have one like it. Counted anew every n updates.

    limit        cosine above which two clients are alike
    decay        weight left of a client's average after its next update
    seed         of the signs and of the lots: secret, or who knows it can hide and can tell when it will vote
    sketch_seed  of the signs, where it is another: 0.1 had one for the signs alone
    """

    name = "groups"

    def __init__(
        self, dim: int, limit: float = 0.5, decay: float = 0.9, seed: int = 0, sketch_seed: int | None = None
    ) -> None:
        self._limit = limit
        self._decay = decay
        self._seed = seed
        self.signs = draw_signs(dim, seed if sketch_seed is None else sketch_seed)
        self._sketches: dict[ClientId, Vector] = {}
        self._counts: dict[ClientId, int] = {}
        self._know({})
        self._num_heard = 0  # since the last count

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        if remembered:
            if arrival.sketch is not None:
                self._take(arrival.client, arrival.sketch.astype(np.float64))
            arrival.evidence["alike"] = float(self.num_alike(arrival.client))

    def _take(self, client: ClientId, sketch: Float) -> None:
        """Count the sketch of an update."""
        before, count = self._sketches.get(client, np.zeros(WIDTH, np.float32)), self._counts.get(client, 0) + 1
        weight = max(1.0 / count, 1.0 - self._decay)  # a client's first updates count alike
        self._sketches[client] = (before + weight * (sketch - before)).astype(np.float32)
        self._counts[client] = count
        self._num_heard += 1
        if self._num_heard >= len(self._sketches) >= MIN_CLIENTS:
            self._count()

    def num_alike(self, client: ClientId) -> int:
        """How many clients are like this one, itself included, as far as is known."""
        return self._alike.get(client, 1)

    def share(self, client: ClientId) -> float:
        """With which chance the client votes."""
        return float(min(1.0, self._usual / self.num_alike(client)) ** 2)

    def absent(self, number: int) -> frozenset[ClientId]:
        """Who may not vote at this arrival: drawn by lot, and the same when the arrival is repeated."""
        lots = np.random.Generator(np.random.Philox(key=[number ^ self._seed, _LOTS])).random(len(self._alike))
        return frozenset(client for client, lot in zip(self._alike, lots, strict=True) if lot >= self.share(client))

    def state_dict(self) -> StateDict:
        clients = list(self._sketches)
        return {
            "clients": np.array(clients, np.int64),
            "sketches": np.array([self._sketches[client] for client in clients], np.float32).reshape(-1, WIDTH),
            "counts": np.array([self._counts[client] for client in clients], np.int64),
            "alike": np.array(list(self._alike.items()), np.int64).reshape(-1, 2),
            "num_heard": np.array(self._num_heard, np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._sketches = dict(zip(clients, np.array(state["sketches"], np.float32), strict=True))
        self._counts = dict(zip(clients, np.asarray(state["counts"]).tolist(), strict=True))
        self._know({ClientId(client): number for client, number in np.asarray(state["alike"]).tolist()})
        self._num_heard = int(np.asarray(state["num_heard"], np.int64))

    def _count(self) -> None:
        sketches = np.stack(list(self._sketches.values()))
        middle = np.median(sketches, axis=0).astype(np.float32)
        numbers = count_alike(sketches - middle, self._limit)
        self._know(dict(zip(self._sketches, numbers.tolist(), strict=True)))
        self._num_heard = 0

    def _know(self, alike: dict[ClientId, int]) -> None:
        self._alike = alike
        self._usual = float(np.median(list(alike.values()))) if alike else 1.0


def count_alike(rows: Vector, limit: float) -> npt.NDArray[np.int64]:
    """(n,) for each row, how many have a cosine above `limit` with it; itself included, even where it vanishes."""
    lengths = np.sqrt([kernels.dot(row, row) for row in rows])
    products = kernels.pair_products(rows)
    alike = products > limit * np.outer(lengths, lengths)
    np.fill_diagonal(alike, True)
    return np.asarray(alike.sum(axis=1), np.int64)


_LOTS = 2  # apart from the signs, and from the lots that pair votes
