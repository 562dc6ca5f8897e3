"""What each client keeps asking for: the average of its updates' directions over time, as a sketch.

Each update is scaled to unit length and sketched: sums over its coordinates with random signs, which keep cosines up to
about 1 / sqrt(WIDTH). A client's sketches are averaged. Noise fades, and so do masks that cancel out.

The signs follow from a secret seed: who knows them can fill its sketch with a small addition of its own.

Shapes: d = parameters, w = sketches.WIDTH.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from secureafl import kernels
from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.sketches import WIDTH, SketchDtype, Sketches
from secureafl.defenses.secureafl.stages import Arrival, Signs, Votes
from secureafl.kernels.vectors import NOTHING
from secureafl.types import Array, ClientId, StateDict, StateView, Vector


class Directions(Votes):
    """Every client's average sketch.

    decay  weight left of a client's average after its next update
    seed   of the signs: secret
    dtype  how averages are kept
    """

    name = "directions"

    def __init__(self, dim: int, decay: float = 0.95, seed: int = 0, dtype: SketchDtype = "float32") -> None:
        self._decay = decay
        self.signs = draw_signs(dim, seed)
        self._averages = Sketches(dtype)
        self._num_heard = Column(np.int64, 0)
        self._asked: tuple[tuple[int, int], Vector, Vector] = (-1, 0), NOTHING, NOTHING  # the last `after`, asked twice
        self._left_out: set[ClientId] = set()
        self._counted: dict[ClientId, None] = {}  # in the order in which they came
        self._sum = np.zeros(WIDTH)  # of those that count

    def __len__(self) -> int:
        return len(self._averages)

    def __contains__(self, client: ClientId) -> bool:
        return self._num_heard[client] > 0

    @property
    def sketch_bytes(self) -> int:
        """What is kept of a client takes so many bytes."""
        return self._averages.bytes_each

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

    def num_heard(self, client: ClientId) -> int:
        """How many of its updates were taken in."""
        return self._num_heard[client]

    def own_cosine(self, client: ClientId) -> float:
        """About the mean cosine between two of the client's recent updates, once there are two."""
        average = self.of(client)
        alone = self._of_squares(self._num_heard[client])
        return (kernels.dot(average, average) - alone) / (1.0 - alone)

    def _of_squares(self, num_heard: int) -> float:
        """The sum of the squared weights of the updates in an average of so many."""
        last_alike = math.floor(1.0 / (1.0 - self._decay) + 1e-9)  # up to there all weigh the same
        if num_heard <= last_alike:
            return 1.0 / num_heard
        limit, left = (1.0 - self._decay) / (1.0 + self._decay), self._decay ** (2 * (num_heard - last_alike))
        return limit + left * (1.0 / last_alike - limit)

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        if remembered and arrival.sketch is not None:
            self._take(arrival.client, np.asarray(arrival.sketch, np.float32), arrival.counts)

    def _take(self, client: ClientId, sketch: Vector, counts: bool) -> None:
        after = self.after(client, sketch)
        self._uncount(client)
        self._averages[client] = after
        self._num_heard[client] += 1
        if counts and client not in self._left_out:
            self._counted[client] = None
            self._sum += self.of(client)

    def after(self, client: ClientId, sketch: Vector) -> Vector:
        """The client's average once this update is taken in; its first ones count alike."""
        num_heard = self._num_heard[client]
        if num_heard == 0:
            return sketch
        if self._asked[0] == (client, num_heard) and self._asked[1] is sketch:
            return self._asked[2]
        before = self.of(client)
        weight = np.float32(max(1.0 / (num_heard + 1), 1.0 - self._decay))
        after: Vector = before + weight * (sketch - before)
        self._asked = (client, num_heard), sketch, after
        return after

    def agreement(self, client: ClientId, direction: Vector) -> float:
        """The cosine between a direction, in place of the client's own, and the sum of all others' that count."""
        others = self._sum - self.of(client) if client in self._counted else self._sum
        return kernels.cosine(direction, others.astype(np.float32)) or 0.0

    def leave_out(self, client: ClientId, leave_out: bool) -> None:
        """Let the client's direction count no longer, or again from its next update on."""
        if leave_out:
            self._left_out.add(client)
            self._uncount(client)
        else:
            self._left_out.discard(client)

    def _uncount(self, client: ClientId) -> None:
        """Take the client's average out of the sum."""
        if client in self._counted:
            del self._counted[client]
            self._sum -= self.of(client)

    def forget(self, client: ClientId) -> None:
        self._uncount(client)
        self._left_out.discard(client)
        del self._averages[client], self._num_heard[client]

    def state_dict(self) -> StateDict:
        return {**self._averages.state_dict(), **self._small_state()}

    def state_view(self) -> StateView:
        return {**self._averages.state_view(), **self._small_state()}

    def _small_state(self) -> StateDict:
        return {
            "num_heard": self._num_heard.pairs(),
            "left_out": np.array(sorted(self._left_out), np.int64),
            "counted": np.array(list(self._counted), np.int64),
            "sum": self._sum.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._averages.load_state_dict(state)
        self._num_heard.load_pairs(state["num_heard"])
        self._left_out = {ClientId(client) for client in np.asarray(state["left_out"]).tolist()}
        self._counted = dict.fromkeys(map(ClientId, np.asarray(state["counted"]).tolist()))
        self._sum = np.array(state["sum"], np.float64)


def draw_signs(dim: int, seed: int) -> Signs:
    """(d,) 1 or -1 for each coordinate."""
    lots = np.random.Generator(np.random.Philox(key=[seed, _SIGNS]))
    return lots.integers(0, 2, dim, np.int8) * np.int8(2) - np.int8(1)


_SIGNS = 1  # the stream of these lots, apart from others of the same seed
