"""AsyncFilter: collect a few updates, compare those for the same model with each other, and drop the furthest of them.

Y. Kang and B. Li, "AsyncFilter: Detecting Poisoning Attacks in Asynchronous Federated Learning", Middleware 2024. What
the text leaves open is as in the authors' code, in Plato's example `detector`.

A *round* is what lies between two steps. When K updates came, those for the model of the same round r are a group G_r:

    a_r   average of all updates for round r so far, this group's included
    s_i = |g_i - a_r| / sum over j in G_r of |g_j - a_r|
    the scores of a group of MIN_GROUP or more are split into three clusters by k-means; the highest is dropped

The step is the mean of what is left. An update is judged when its buffer is full: until then its verdict says
`buffered`. The update that fills a buffer gets the verdict that this says of it; `num_dropped` tells how many fell.

Departure: the clusters are the best split of the scores in order, which k-means from random starts approximates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt
from pydantic import Field

from secureafl.defenses.base import distance, norm, staleness
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Vector, Verdict, refuse

NUM_CLUSTERS = 3
MIN_GROUP = 3
"""Smaller groups are not judged."""


class AsyncFilterSettings(Settings):
    """AsyncFilter's settings. The published ones are marked [O], ours [A]."""

    buffer_size: int = Field(20, ge=1)
    """Updates in a step. [O: 40 of 100 clients]"""
    max_rounds: int = Field(20, ge=1)
    """Rounds whose averages are kept; updates for older ones are not judged. [O: 20]"""
    scale: float = Field(1.0, gt=0.0)
    """Factor on the mean of what is left, beside the server's learning rate: a step comes once per buffer. [A]"""


class AsyncFilter:
    """Holds a buffer of updates, and the average update for each of the last rounds."""

    def __init__(self, dim: int, settings: AsyncFilterSettings = AsyncFilterSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._buffer: list[Vector] = []
        self._rounds: list[int] = []  # of each update in the buffer: that of its model
        self._ends: list[int] = []  # versions at which the last rounds ended
        self._num_ended = 0
        self._averages: dict[int, Vector] = {}
        self._counts: Counter[int] = Counter()

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        self._buffer.append(update.delta.copy())
        self._rounds.append(self._round_of(update.base.version))
        evidence = {"norm": norm(update.delta), "staleness": float(staleness(update, model))}
        if len(self._buffer) < self.settings.buffer_size:
            return Verdict(True, Reason.BUFFERED, None, evidence)
        dropped, scores = self._judge()
        kept = [delta for place, delta in enumerate(self._buffer) if place not in dropped]
        direction = np.asarray(self.settings.scale * np.mean(kept, axis=0, dtype=np.float32), np.float32)
        own = len(self._buffer) - 1
        evidence["num_dropped"] = float(len(dropped))
        if own in scores:
            evidence["distance"] = scores[own]
        self._begin_round(model.version + 1)
        rejected = own in dropped
        return Verdict(not rejected, Reason.FAR_FROM_GROUP if rejected else Reason.ACCEPTED, direction, evidence)

    def state_dict(self) -> StateDict:
        rounds = sorted(self._averages)
        return {
            "buffer": np.array(self._buffer, np.float32).reshape(-1, self._dim),
            "rounds": np.array(self._rounds, np.int64),
            "ends": np.array(self._ends, np.int64),
            "num_ended": np.array(self._num_ended, np.int64),
            "average_rounds": np.array(rounds, np.int64),
            "average_counts": np.array([self._counts[number] for number in rounds], np.int64),
            "averages": np.array([self._averages[number] for number in rounds], np.float32).reshape(-1, self._dim),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._buffer = list(np.array(state["buffer"], np.float32))
        self._rounds = np.asarray(state["rounds"]).tolist()
        self._ends = np.asarray(state["ends"]).tolist()
        self._num_ended = int(np.asarray(state["num_ended"], np.int64))
        rounds = np.asarray(state["average_rounds"]).tolist()
        self._averages = dict(zip(rounds, np.array(state["averages"], np.float32), strict=True))
        self._counts = Counter(dict(zip(rounds, np.asarray(state["average_counts"]).tolist(), strict=True)))

    def _round_of(self, version: int) -> int:
        """The round in which the model had this version; of versions before those remembered, an older one."""
        return self._num_ended - len(self._ends) + bisect_right(self._ends, version)

    def _judge(self) -> tuple[set[int], dict[int, float]]:
        """Places in the buffer whose updates are dropped, and the scores of all that were judged."""
        dropped: set[int] = set()
        scores: dict[int, float] = {}
        for number in sorted(set(self._rounds)):
            places = [place for place, of in enumerate(self._rounds) if of == number]
            if len(places) < MIN_GROUP or number < self._num_ended - self.settings.max_rounds:
                continue
            average = self._follow(number, [self._buffer[place] for place in places])
            distances = np.array([distance(self._buffer[place], average) for place in places])
            if distances.sum() == 0.0:
                continue
            found = distances / distances.sum()
            scores |= dict(zip(places, found.tolist(), strict=True))
            dropped |= {places[k] for k in highest_cluster(found)}
        return dropped, scores

    def _follow(self, number: int, deltas: list[Vector]) -> Vector:
        """The average of all updates for this round, these included."""
        count, new = self._counts[number], len(deltas)
        before = self._averages.get(number, np.zeros(self._dim, np.float32))
        share = np.float32(new / (count + new))
        self._averages[number] = before + share * (np.mean(deltas, axis=0, dtype=np.float32) - before)
        self._counts[number] = count + new
        return self._averages[number]

    def _begin_round(self, version: int) -> None:
        self._buffer, self._rounds = [], []
        self._ends = [*self._ends, version][-self.settings.max_rounds :]
        self._num_ended += 1
        for number in [number for number in self._averages if number < self._num_ended - self.settings.max_rounds]:
            del self._averages[number], self._counts[number]


def highest_cluster(scores: npt.NDArray[np.float64]) -> list[int]:
    """Places of the scores in the highest of three clusters; none if there are no three different scores."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    splits = [place for place in range(1, len(ordered)) if ordered[place] > ordered[place - 1]]
    if len(splits) < NUM_CLUSTERS - 1:
        return []
    best = min(combinations(splits, NUM_CLUSTERS - 1), key=lambda split: _spread(ordered, split))
    return [int(place) for place in order[best[-1] :]]


def _spread(ordered: npt.NDArray[np.float64], split: tuple[int, ...]) -> float:
    """The sum of squared distances from each cluster's mean."""
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(ordered, split)))
