"""Where the rows of clients lie: in memory, or in a file that is mapped into it. `ray_store` has a third place.

A row is an array (d,), in whichever type it is kept, and has a place: a small number that whoever owns the rows gives
out. An arrival reads one row and writes one.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from secureafl.errors import RowsError
from secureafl.types import Array

SEGMENT_BYTES = 1 << 26  # the file is mapped in pieces of about this size, so that none moves when it grows
ALIGNMENT = 64  # no vector of a row crosses a cache line


class RowStore(Protocol):
    """Rows by place."""

    where: str
    """In a word, where they lie."""

    def read(self, place: int) -> Array:
        """(d,) the row. It may be changed in place, and is then written."""

    def write(self, place: int, row: Array) -> None:
        """Keep this row. It may be the array that `read` gave; nobody else changes it afterwards."""

    def drop(self, place: int) -> None:
        """Nobody will read this row before it is written again."""

    def clear(self) -> None:
        """Drop all rows."""


class MemoryRows:
    """Rows in memory, an array each."""

    where = "memory"

    def __init__(self) -> None:
        self._rows: dict[int, Array] = {}

    def read(self, place: int) -> Array:
        return self._rows[place]

    def write(self, place: int, row: Array) -> None:
        self._rows[place] = row

    def drop(self, place: int) -> None:
        self._rows.pop(place, None)

    def clear(self) -> None:
        self._rows.clear()


class MappedRows:
    """Rows in a file that the system reads and writes as there is memory: it may be larger than that.

    The file has no name, so nobody takes what a server left behind for rows: it is gone with the process, and a resumed
    run fills another. It is sparse: it takes room on the disk for rows that were written. That room is taken before, so
    that a full disk is an error and not the end of the process.
    """

    where = "mapped file"

    def __init__(self, dim: int, dtype: npt.DTypeLike, directory: Path) -> None:
        self._dim = dim
        self._dtype = np.dtype(dtype)
        self._stride = -(-dim * self._dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._per_segment = max(1, SEGMENT_BYTES // self._stride)
        self._segment_bytes = -(-self._per_segment * self._stride // mmap.ALLOCATIONGRANULARITY)
        self._segment_bytes *= mmap.ALLOCATIONGRANULARITY
        self._directory = directory
        self.clear()

    def clear(self) -> None:
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file, name = tempfile.mkstemp(dir=self._directory, prefix="rows-")
            Path(name).unlink()
        except OSError as error:
            raise RowsError(f"cannot keep rows in {self._directory}: {error.strerror}; name another rows_dir") from None
        weakref.finalize(self, os.close, self._file)
        self._segments: list[mmap.mmap] = []
        self._written: set[int] = set()

    def read(self, place: int) -> Array:
        segment, offset = self._find(place)
        first = offset - offset % mmap.PAGESIZE
        segment.madvise(mmap.MADV_WILLNEED, first, offset - first + self._stride)  # in one go, not page by page
        return self._row(segment, offset)

    def write(self, place: int, row: Array) -> None:
        if place not in self._written:
            self._take_room(place)
        kept = self._row(*self._find(place))
        if kept.ctypes.data != row.ctypes.data:
            kept[:] = row

    def drop(self, place: int) -> None:
        """Its room is for the next one in this place."""

    def _row(self, segment: mmap.mmap, offset: int) -> Array:
        return np.frombuffer(segment, self._dtype, self._dim, offset)

    def _find(self, place: int) -> tuple[mmap.mmap, int]:
        number, within = divmod(place, self._per_segment)
        return self._segments[number], within * self._stride

    def _take_room(self, place: int) -> None:
        number, within = divmod(place, self._per_segment)
        try:
            while len(self._segments) <= number:
                start = len(self._segments) * self._segment_bytes
                os.truncate(self._file, start + self._segment_bytes)
                self._segments.append(mmap.mmap(self._file, self._segment_bytes, offset=start))
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, number * self._segment_bytes + within * self._stride, self._stride)
        except OSError as error:
            raise RowsError(
                f"cannot keep another row in {self._directory}: {error.strerror}. Make room there and resume the run,"
                " or name another rows_dir"
            ) from None
        self._written.add(place)
