"""An array (n, d) of which a row is read when it is asked for: it can be saved without a copy of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from secureafl.types import Array


class RowByRow:
    """An `ArrayInRows`.

    tags   a number for each row, equal only for rows of the same bytes
    width  d
    read   gives the row of this number
    """

    def __init__(
        self, tags: Sequence[int], width: int, dtype: np.dtype[np.generic], read: Callable[[int], Array]
    ) -> None:
        self.tags = tags
        self.shape = (len(tags), width)
        self.dtype = dtype
        self.nbytes = len(tags) * width * dtype.itemsize
        self._read = read

    def __getitem__(self, number: int) -> Array:
        return self._read(number)

    def parts(self) -> Iterator[memoryview]:
        return (self[number].reshape(-1).data.cast("B") for number in range(len(self.tags)))

    def whole(self) -> Array:
        """All of it in memory."""
        found = np.empty(self.shape, self.dtype)
        for number in range(len(found)):
            found[number] = self[number]
        return found
