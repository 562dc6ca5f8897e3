"""The weighted mean of everyone's last update, kept as a running sum: an arrival reads and writes its sender's row.

    S += w' v - w v_last ;  W += w' - w ;  g = S / W + lead (v - v_last)

v is the sender's update after the limits, w its weight. The sum is exact (see `kernels.sums`), so it is at any time
what it would be if it were computed anew, and needs no correction.

A vote is as old as its client's last update. A mean of many old votes makes the model swing, further with every swing
once the learning rate, the age and the curvature together are large. So only `max_votes` clients vote at a time. Who
comes and has no vote takes that of a client drawn by lot: old votes then fade, and do not leave all at once, which
would make the model swing again. An update over its client's budget takes nobody's vote, or who sends more often than
others would vote more often.

Rows are what costs memory. With `max_seats`, only so many clients have one: a *seat*. Who comes without takes that of
the client heard least recently, whose vote leaves the sum until it comes back. It is met again then, but there is
nothing to compare its update with.

Shapes: d = parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.stages import Combiner
from secureafl.errors import StateError
from secureafl.history import LastUpdates, RowStore, RowType
from secureafl.types import Array, ClientId, StateDict, StateView, Vector

MOST_ADDED = 1 << 20
"""So many updates of the greatest length, all in one coordinate, can be added up."""


class RunningMean(Combiner):
    """Keeps everyone's last update, its weight, and their mean.

    clip_norm  the greatest length that an update may count as
    max_votes  clients that vote at a time; None for all whose last update is kept
    max_seats  clients whose last update is kept; None for all
    kind       how updates are kept: in 32 bits, or rounded to 16
    store      where they are kept; None for memory
    seed       of the lots
    """

    def __init__(
        self,
        dim: int,
        clip_norm: float = 50.0,
        max_votes: int | None = 1000,
        max_seats: int | None = None,
        kind: RowType = "float32",
        store: RowStore | None = None,
        seed: int = 0,
    ) -> None:
        self.rows = LastUpdates(dim, kind, store)
        self.max_votes = max_votes
        self.max_seats = max_seats
        self._seed = seed
        self._num_lots = 0
        self._voters: list[ClientId] = []
        self._places: dict[ClientId, int] = {}  # of those in `_voters`
        self._met = Column(np.bool_, False)
        self.unit = 2.0 ** (math.ceil(math.log2(clip_norm * MOST_ADDED)) - 62)
        self._votes: kernels.Sum = np.zeros(dim, np.int64)
        self._weights: dict[ClientId, int] = {}  # in units of 1 / FULL; rows without weight are not in the sum
        self._all_weights = 0
        self._to_visit: list[ClientId] = []  # whose weight is still to be looked at, last first
        self.mean: Vector = np.empty(0, np.float32)
        self.mean_square = 0.0
        self._next_mean: Vector = np.empty(dim, np.float32)  # takes turns with `mean`, as fresh memory costs time

    def shares(self) -> dict[ClientId, float]:
        """Each known client's share in the mean."""
        total = max(1, self._all_weights)
        return {client: self._weights.get(client, 0) / total for client in self.rows}

    @property
    def fixed_bytes(self) -> int:
        """What the sum and the mean take, however few clients there are."""
        return self._votes.nbytes + 2 * self._next_mean.nbytes

    def has_met(self, client: ClientId) -> bool:
        """Whether the client was heard before, with or without a seat now."""
        return self._met[client]

    def replace(
        self,
        client: ClientId,
        delta: Vector,
        of_delta: float,
        of_row: float,
        sketches: tuple[Vector, Vector] | None,
        weight: float,
        lead: float,
        *,
        may_take: bool = True,
    ) -> kernels.Replaced | None:
        """Make v = of_delta delta + of_row v_last the client's vote; None while nobody has one.

        sketches  of v, and of the model the update was made for; None if the client's row stays as it is
        may_take  whether its client, if it has no vote and as many as may vote do, takes somebody's
        """
        row = self.rows.read(client)
        if row is None:
            if sketches is None:  # an unknown client that is not to be remembered
                return self._renew()
            self._met[client] = True
            self._make_room()
            row = self.rows.add(client, *sketches)
        elif self.max_seats is not None:
            self.rows.move_to_end(client)
        self._give_vote(client, may_take=may_take)
        before, after = self._weights.get(client, 0), self._vote_of(client, weight)
        self._weigh(client, after)
        vector = self.rows.vector(client)
        fitted = None
        if sketches is not None:
            fitted = self.rows.fit(client, delta, of_delta, of_row)
            delta, of_delta, of_row = fitted.delta, fitted.of_delta, fitted.of_row
        replaced = kernels.replace(
            self._votes,
            vector,
            delta,
            of_delta,
            of_row,
            before,
            after,
            self._all_weights,
            self.unit,
            lead,
            self._next_mean,
        )
        row.square = replaced.row_square
        if sketches is not None and fitted is not None:
            row.sketch, row.base_sketch = sketches
            self.rows.write(client, vector, fitted)
        return self._follow(replaced)

    def reweigh(self, client: ClientId, weight: float) -> None:
        """Give the client's vote another weight. It shows in the next mean."""
        before, after = self._weights.get(client, 0), self._vote_of(client, weight)
        if client in self.rows and after != before:
            kernels.reweigh(self._votes, self.rows.last_delta(client), before, after, self.unit)
            self._weigh(client, after)

    def review(self) -> None:
        """Look at everyone's weight in the course of the next arrivals."""
        self._to_visit = self.rows.clients

    def visit(self, weight: Callable[[ClientId], float], most: int) -> None:
        """Bring the weights of some clients that are still to be looked at up to date."""
        for _ in range(min(most, len(self._to_visit))):
            client = self._to_visit.pop()
            self.reweigh(client, weight(client))

    def forget(self, client: ClientId) -> None:
        self.unseat(client)
        del self._met[client]

    def _vote_of(self, client: ClientId, weight: float) -> int:
        """The weight in the sum of one who would have this weight if it votes now."""
        return round(weight * kernels.FULL) if client in self._places else 0

    def _give_vote(self, client: ClientId, *, may_take: bool) -> None:
        """Let the client vote; where as many as may do already, in place of one drawn by lot, or not at all."""
        if client in self._places:
            return
        if self.max_votes is not None and len(self._voters) >= self.max_votes:
            if not may_take:
                return
            self._num_lots += 1
            self._take_vote(self._voters[_lot(self._seed, self._num_lots, len(self._voters))])
        self._places[client] = len(self._voters)
        self._voters.append(client)

    def _take_vote(self, client: ClientId) -> None:
        place = self._places.pop(client, None)
        if place is None:
            return
        last = self._voters.pop()
        if last != client:
            self._voters[place], self._places[last] = last, place
        self.reweigh(client, 0.0)

    def _make_room(self) -> None:
        """Give up the seat of the client heard least recently, if there is none left."""
        if self.max_seats is not None and len(self.rows) >= self.max_seats:
            self.unseat(next(iter(self.rows)))

    def unseat(self, client: ClientId) -> None:
        """Drop the client's last update, and its vote with it. It was met all the same."""
        self._take_vote(client)
        self.rows.drop(client)

    def state_dict(self) -> StateDict:
        return {**self._own_state(), **scoped("rows", self.rows.state_dict())}

    def state_view(self) -> StateView:
        return {**self._own_state(), **scoped("rows", self.rows.state_view())}

    def _own_state(self) -> StateDict:
        return {
            "votes": self._votes.copy(),
            "weights": np.array(list(self._weights.items()), np.int64).reshape(-1, 2),
            "voters": np.array(self._voters, np.int64),
            "num_lots": np.array(self._num_lots, np.int64),
            "to_visit": np.array(self._to_visit, np.int64),
            "mean": self.mean.copy(),
            "met": self._met.clients(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if np.asarray(state["votes"]).shape != self._votes.shape:
            raise StateError(f"saved votes have {len(state['votes'])} coordinates; this model has {len(self._votes)}")
        self._votes = np.array(state["votes"], np.int64)
        self._weights = {ClientId(client): weight for client, weight in np.asarray(state["weights"]).tolist()}
        self._all_weights = sum(self._weights.values())
        self._voters = [ClientId(client) for client in np.asarray(state["voters"]).tolist()]
        self._places = {client: place for place, client in enumerate(self._voters)}
        self._num_lots = int(state["num_lots"])
        self._to_visit = [ClientId(client) for client in np.asarray(state["to_visit"]).tolist()]
        self.mean = np.array(state["mean"], np.float32)
        self.mean_square = kernels.dot(self.mean, self.mean)
        self._met.load(state["met"], np.array(True))
        self.rows.load_state_dict(unscoped("rows", state))

    def _renew(self) -> kernels.Replaced | None:
        """The mean as it stands."""
        nothing = np.zeros(self.rows.dim, np.float32)
        replaced = kernels.replace(
            self._votes, nothing, nothing, 0.0, 0.0, 0, 0, self._all_weights, self.unit, 0.0, self._next_mean
        )
        return self._follow(replaced)

    def _follow(self, replaced: kernels.Replaced) -> kernels.Replaced | None:
        if self._all_weights == 0:
            return None
        spare = self.mean if len(self.mean) else np.empty_like(self._next_mean)
        self.mean, self._next_mean = self._next_mean, spare
        self.mean_square = replaced.mean_square
        return replaced

    def _weigh(self, client: ClientId, weight: int) -> None:
        self._all_weights += weight - self._weights.pop(client, 0)
        if weight:
            self._weights[client] = weight


def _lot(seed: int, number: int, below: int) -> int:
    """A number from 0 to below it that nobody can tell without the seed. A generator for each would take far longer."""
    drawn = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") % below
