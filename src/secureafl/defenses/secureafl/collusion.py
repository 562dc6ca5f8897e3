"""How many clients keep asking for much the same: colluders share a goal, so over time what they send is alike.

`directions` has what each client keeps asking for, `recount` says which clients are alike. Honest clients whose data
are alike are alike too, so this is no proof of an attack, and a group that is somewhat larger than is usual keeps its
votes. But a larger one gets none by its size:

    weight = min(1, TOLERATED usual / alike)^POWER     alike: clients like this one, itself included
                                                       usual: the median of that

Clients that are excluded as being against the consensus are not counted: they have no votes, and who happens to be like
them should not lose any. An operator who knows some clients can vouch for them: they have whole votes.

C. Fung, C. J. M. Yoon and I. Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", RAID 2020, weigh
clients by the likeness of summed updates; there one who is unlike all others weighs most, here as much as anyone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from secureafl import kernels
from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.consensus import MIN_CLIENTS
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.operator import Vouched
from secureafl.defenses.secureafl.recount import MAX_ANCHORS, Recount
from secureafl.defenses.secureafl.stages import Arrival, Votes
from secureafl.types import Array, ClientId, StateDict, Vector

POWER = 4
TOLERATED = 1.5
"""So many times the usual size does not matter."""
LAPS = 2
"""Updates per client between the beginnings of two counts: what clients keep asking for changes slowly. Twice as many
where anchors stand for all, so that an arrival's share of the work is about the same."""


class Groups(Votes):
    """Weighs a client by how many others are like it. A count of few clients is over in a lap.

    directions  what clients keep asking for
    limit       cosine above which two clients are alike
    seed        of the lots that decide with whom all are compared, if there are many: secret
    vouched     names of clients that are exempt
    """

    name = "groups"

    def __init__(
        self, directions: Directions, limit: float = 0.5, seed: int = 0, vouched: Collection[str] = ()
    ) -> None:
        self._directions = directions
        self._limit = limit
        self._seed = seed
        self._vouched = Vouched(vouched)
        self._alike = Column(np.float64, 0.0)
        self._usual = 1.0
        self._num_heard = 0  # since the last count began
        self._num_counts = 0
        self._recount: Recount | None = None
        self._to_count: list[ClientId] = []
        self._found = Column(np.float64, 0.0)
        self._sizes: Counter[float] = Counter()  # of all found so far: few different numbers, however many clients
        self._num_counted = 0
        self._news = False  # whether a count was concluded since anyone asked

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        if remembered:
            self._num_heard += arrival.counts
            arrival.evidence["alike"] = self.num_alike(arrival.client)
        self._go_on()

    def num_alike(self, client: ClientId) -> float:
        """About how many clients are like this one, itself included, as far as is known."""
        return self._alike[client] or 1.0

    def meet(self, client: ClientId, name: str) -> None:
        self._vouched.meet(client, name)

    def weight(self, client: ClientId) -> float:
        if client in self._vouched:
            return 1.0
        return float(min(1.0, TOLERATED * self._usual / self.num_alike(client)) ** POWER)

    def would_be_alike(self, client: ClientId, sketch: Vector) -> bool:
        """Whether this update would leave its sender like more clients than is usual, by the cosine alone."""
        others = [other for other in self._directions.counted if other != client]
        if len(others) < MIN_CLIENTS:
            return False
        rows = np.stack([self._directions.after(client, sketch), *map(self._directions.of, others)])
        rows -= np.median(rows, axis=0).astype(np.float32)
        lengths = np.sqrt([kernels.dot(row, row) for row in rows])
        alike = kernels.products_with(rows[1:], rows[0]) > self._limit * lengths[0] * lengths[1:]
        return 1 + int(alike.sum()) > self._usual

    def weights_changed(self) -> bool:
        changed, self._news = self._news, False
        return changed

    def forget(self, client: ClientId) -> None:
        del self._alike[client]

    def state_dict(self) -> StateDict:
        state: StateDict = {
            "usual": np.array(self._usual, np.float64),
            "progress": np.array([self._num_heard, self._num_counts, self._num_counted, self._news], np.int64),
            **_saved("alike", self._alike),
            **_saved("found", self._found),
            "to_count": np.array(self._to_count, np.int64),
        }
        if self._recount is not None:
            state["anchors"] = np.array(self._recount.anchors, np.int64)
            state["anchor_sketches"] = self._recount.sketches.copy()
            state["parts_done"] = np.array(self._recount.num_done, np.int64)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        for name, column in (("alike", self._alike), ("found", self._found)):
            column.load(state[f"{name}.clients"], state[f"{name}.numbers"])
        self._sizes = Counter(self._found.values[self._found.clients()].tolist())
        self._usual = float(np.asarray(state["usual"], np.float64))
        self._num_heard, self._num_counts, self._num_counted, news = np.asarray(state["progress"]).tolist()
        self._news = bool(news)
        self._to_count = _clients(state["to_count"])
        self._recount = None
        if "anchors" in state:
            self._recount = Recount(
                _clients(state["anchors"]), np.array(state["anchor_sketches"], np.float32), self._limit
            )
            for _ in range(int(np.asarray(state["parts_done"], np.int64))):
                self._recount.work()

    def _go_on(self) -> None:
        if self._recount is None:
            n = self._directions.num_counted
            if self._num_heard < _interval(n) or n < MIN_CLIENTS:
                return
            self._begin()
        assert self._recount is not None
        n, each = max(1, len(self._to_count)), self._recount.clients_per_part()
        total = self._recount.num_parts - (-n // each)
        due = total * self._num_heard // (n if n <= MAX_ANCHORS else _interval(n))
        while self._recount.num_done - (-self._num_counted // each) <= due:
            if not self._recount.work() and not self._count_some(each):
                self._conclude()
                return

    def _begin(self) -> None:
        self._to_count, self._num_counted, self._num_heard = self._directions.counted, 0, 0
        self._found, self._sizes = Column(np.float64, 0.0), Counter()
        anchors = self._to_count
        if len(anchors) > MAX_ANCHORS:
            lots = np.random.Generator(np.random.Philox(key=[self._seed, _LOTS + self._num_counts]))
            places = lots.choice(len(anchors), MAX_ANCHORS, replace=False)
            anchors = [anchors[place] for place in np.sort(places).tolist()]
        self._num_counts += 1
        self._recount = Recount(anchors, np.stack([self._directions.of(client) for client in anchors]), self._limit)

    def _count_some(self, each: int) -> bool:
        """Count some clients; False if all are counted."""
        assert self._recount is not None
        clients = self._to_count[self._num_counted : self._num_counted + each]
        scale = (len(self._to_count) - 1) / max(1, len(self._recount.anchors) - 1)
        for client in clients:
            if client in self._directions:
                size = 1.0 + scale * self._recount.alike(client, self._directions.of(client))
                self._found[client] = size
                self._sizes[size] += 1
        self._num_counted += len(clients)
        return bool(clients)

    def _conclude(self) -> None:
        self._alike, self._found = self._found, Column(np.float64, 0.0)
        self._usual = _median(sorted(self._sizes.items()), self._sizes.total()) if self._sizes else 1.0
        self._sizes = Counter()
        self._recount, self._to_count, self._num_counted = None, [], 0
        self._news = True


def _interval(n: int) -> int:
    """Updates between the beginnings of two counts of so many clients."""
    return LAPS * n if n <= MAX_ANCHORS else 2 * LAPS * n


def _median(counts: list[tuple[float, int]], total: int) -> float:
    """The median of numbers, given each number with how often it occurs, in order."""
    middle, seen = [], 0
    for value, count in counts:
        for place in ((total - 1) // 2, total // 2):
            if seen <= place < seen + count:
                middle.append(value)
        seen += count
    return sum(middle) / 2.0


def _saved(name: str, column: Column[float]) -> StateDict:
    clients = column.clients()
    return {f"{name}.clients": clients, f"{name}.numbers": column.values[clients]}


def _clients(values: Array) -> list[ClientId]:
    return [ClientId(client) for client in np.asarray(values).tolist()]


_LOTS = 1 << 32  # apart from the signs' stream
