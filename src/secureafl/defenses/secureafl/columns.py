"""One number of each client, in arrays that grow as clients come: a million clients are no million objects."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from secureafl.types import Array, ClientId

Number = TypeVar("Number", int, float, bool)
Clients = npt.NDArray[np.int64]

_FIRST = 64


class Column(Generic[Number]):
    """A number for each client; `nothing` for those that have none."""

    def __init__(self, dtype: npt.DTypeLike, nothing: Number) -> None:
        self._nothing: Number = nothing
        self._take(np.full(_FIRST, nothing, dtype))

    def __getitem__(self, client: ClientId) -> Number:
        number: Number = self._view[client] if client < self._length else self._nothing
        return number

    def __setitem__(self, client: ClientId, number: Number) -> None:
        if client >= self._length:
            more = np.full(max(client + 1, 2 * self._length) - self._length, self._nothing, self.values.dtype)
            self._take(np.concatenate([self.values, more]))
        self._view[client] = number

    def __delitem__(self, client: ClientId) -> None:
        if client < self._length:
            self._view[client] = self._nothing

    def clients(self) -> Clients:
        """Those that have a number."""
        return np.flatnonzero(self.values != self._nothing).astype(np.int64)

    def pairs(self) -> Array:
        """(n, 2) who has a number, and which: as it is saved, for whole numbers."""
        clients = self.clients()
        return np.stack([clients, self.values[clients].astype(np.int64)], axis=1)

    def load_pairs(self, pairs: Array) -> None:
        """Take over what `pairs` returned."""
        clients, numbers = np.asarray(pairs, np.int64).reshape(-1, 2).T
        self.load(clients, numbers)

    def load(self, clients: Array, numbers: Array) -> None:
        """Give these clients these numbers, and all others none."""
        length = max(_FIRST, 1 + int(np.max(clients, initial=-1)))
        self._take(np.full(length, self._nothing, self.values.dtype))
        self.values[np.asarray(clients, np.int64)] = numbers

    def _take(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        self._length = len(values)
        self._view: Any = values.data  # gives and takes single numbers in a third of the time
