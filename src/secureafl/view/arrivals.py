"""Every arrival of a run in columns, small enough to keep whole: some hundred bytes each.

Shapes: m = arrivals.
"""

from __future__ import annotations

import math
from array import array
from functools import cached_property

import numpy as np
import numpy.typing as npt

from secureafl.server.record.entries import Entry

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MEASURES: dict[str, str] = {
    "lipschitz_factor": "Lipschitz factor λ",
    "distance": "distance from the server's gradient",
    "entropy": "entropy",
    "cosine": "cosine to the reference",
    "norm": "length of the update",
}
"""What a defense may judge by, the most telling first; every arrival that could be judged has a norm."""
KEPT = (*MEASURES, "threshold", "staleness", "vote", "steps_left")


class Arrivals:
    """Grows by one row per arrival. `table` is all of it as NumPy columns, made anew only after something came."""

    def __init__(self) -> None:
        self._integers = {name: array("q") for name in ("number", "version", "client", "reason", "accepted")}
        self._numbers = {name: array("d") for name in ("seconds", *KEPT)}
        self.clients: list[str] = []
        self.reasons: list[str] = []
        self._client_places: dict[str, int] = {}
        self._reason_places: dict[str, int] = {}
        self._table: Table | None = None

    def __len__(self) -> int:
        return len(self._integers["number"])

    def add(self, entry: Entry) -> None:
        """Append one arrival."""
        assert entry.number is not None
        self._table = None
        values = (
            entry.number,
            entry.version,
            _place(entry.client, self._client_places, self.clients),
            _place(entry.reason, self._reason_places, self.reasons),
            int(bool(entry.accepted)),
        )
        for column, value in zip(self._integers.values(), values, strict=True):
            column.append(value)
        self._numbers["seconds"].append(entry.seconds)
        for name in KEPT:
            self._numbers[name].append(entry.evidence.get(name, math.nan))

    @property
    def table(self) -> Table:
        """All rows, in order."""
        if self._table is None:
            integers = {name: np.array(column, np.int64) for name, column in self._integers.items()}
            self._table = Table(integers, {name: np.array(column) for name, column in self._numbers.items()})
        return self._table

    def of(self, client: str) -> Integers:
        """The places of one client's arrivals in the table."""
        return np.flatnonzero(self.table.client == self._client_places.get(client, -1))


class Table:
    """Columns (m,). `seconds` never falls, though a run may have been resumed."""

    def __init__(self, integers: dict[str, Integers], numbers: dict[str, Numbers]) -> None:
        self.number, self.version = integers["number"], integers["version"]
        self.client, self.reason = integers["client"], integers["reason"]
        self.accepted = integers["accepted"].astype(bool)
        self.seconds = np.maximum.accumulate(numbers["seconds"]) if len(numbers["seconds"]) else numbers["seconds"]
        self.threshold, self.staleness = numbers["threshold"], numbers["staleness"]
        self.vote, self.steps_left = numbers["vote"], numbers["steps_left"]
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def measure(self) -> str:
        """What the run's defense judges by: the first of `MEASURES` that any arrival has."""
        return next((name for name in MEASURES if not np.isnan(self._numbers[name]).all()), "norm")

    @property
    def judged(self) -> Numbers:
        """The measure of every arrival; NaN where it has none."""
        return self._numbers[self.measure]


def _place(word: str, places: dict[str, int], words: list[str]) -> int:
    if word not in places:
        places[word] = len(words)
        words.append(word)
    return places[word]
