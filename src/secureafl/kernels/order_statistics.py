"""Coordinate-wise median and trimmed mean of n vectors.

A block of coordinates of all vectors is copied into cache and ordered there, as far as needed. For the median of few
vectors and for the trimmed mean, by a sorting network, whose compare-and-swap steps are min/max over the block and so
use the machine's vector units; it is pruned to the comparators that the wanted outputs depend on. For the median of
many vectors, by counting how many values lie below a pivot, which takes a handful of rounds.

Shapes: n = vectors, d = parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.network import Network, network
from secureafl.kernels.threads import in_parts, num_threads
from secureafl.kernels.tiles import exchange, select_middle
from secureafl.kernels.vectors import readable
from secureafl.types import Vector

MAX_NETWORK = 128  # beyond so many vectors, a median by counting is cheaper than by a network
LINE = 64  # bytes of a cache line, and of a vector of sixteen floats
NO_NETWORK: Network = np.empty((0, 2), np.int32)


class Rule(NamedTuple):
    """How the votes of one coordinate become one number: the mean of the ordered values start..stop-1.

    selects   whether those values are found by counting instead of by the network
    """

    network: Network
    selects: bool
    start: int
    stop: int

    @classmethod
    def median(cls, num_votes: int) -> Rule:
        start, stop = (num_votes - 1) // 2, num_votes // 2 + 1
        selects = num_votes > MAX_NETWORK
        return cls(NO_NETWORK if selects else network(num_votes, start, stop), selects, start, stop)

    @classmethod
    def trimmed_mean(cls, num_votes: int, num_trimmed: int) -> Rule:
        if not 0 <= 2 * num_trimmed < num_votes:
            raise ValueError(f"cannot trim {num_trimmed} from each end of {num_votes} vectors")
        start, stop = num_trimmed, num_votes - num_trimmed
        return cls(network(num_votes, start, stop), False, start, stop)

    @classmethod
    def mean(cls, num_votes: int) -> Rule:
        return cls(NO_NETWORK, False, 0, num_votes)


def coordinate_median(rows: Vector) -> Vector:
    """(n, d) -> (d,): the middle value of each coordinate, the mean of the two middle ones for even n.

    NaN counts as +inf, so a minority of NaN rows never wins a coordinate.
    """
    return _aggregate(rows, Rule.median(_num_rows(rows)))


def trimmed_mean(rows: Vector, num_trimmed: int) -> Vector:
    """(n, d) -> (d,): the mean of each coordinate without its `num_trimmed` smallest and largest values."""
    return _aggregate(rows, Rule.trimmed_mean(_num_rows(rows), num_trimmed))


def _num_rows(rows: Vector) -> int:
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"need at least one vector as rows of a matrix, got shape {rows.shape}")
    return len(rows)


def _aggregate(rows: Vector, rule: Rule) -> Vector:
    width = 128 if len(rows) <= MAX_NETWORK else 32  # so that a tile fits into the first-level cache, or nearly
    out = np.empty(rows.shape[1], np.float32)
    in_parts(
        _order,
        -(-len(out) // width),
        num_threads(rows.size),
        readable(rows),
        True if rule.selects else None,
        rule.network,
        rule.start,
        rule.stop,
        width,
        out,
    )
    return out


@inner
def line_up(values):  # type: ignore[no-untyped-def]
    """The part of a buffer that begins on a cache line; it must have a line to spare."""
    return values[-(values.ctypes.data // 4) % (LINE // 4) :]


@inner
def tile_pitch(width, selects):  # type: ignore[no-untyped-def]
    """Floats from one row of a tile to the next. Selection walks down one column many times: an odd number of cache
    lines between rows lets a whole column stay in the first-level cache.
    """
    return width + LINE // 4 if selects else width


@inner
def clear(tile):  # type: ignore[no-untyped-def]
    """tile = 0. Loops, here and below, where NumPy has a shorter word: Numba takes seconds to compile an assignment to
    a slice, for the error message that it might need.
    """
    for k in range(len(tile)):
        for x in range(tile.shape[1]):
            tile[k, x] = 0.0


@inner
def average(tile, start, stop, sums, out):  # type: ignore[no-untyped-def]
    """out = mean of the rows start..stop-1 of a tile."""
    share = 1.0 / (stop - start)
    for x in range(len(out)):
        sums[x] = tile[start, x]
    for k in range(start + 1, stop):
        for x in range(len(out)):
            sums[x] += tile[k, x]
    for x in range(len(out)):
        out[x] = sums[x] * share


@kernel
def _order(first_tile, last_tile, rows, selects, network, start, stop, width, out):  # type: ignore[no-untyped-def]
    n, d = rows.shape
    pitch = tile_pitch(width, selects is not None)
    tile = line_up(np.zeros(n * pitch + LINE // 4, np.float32))[: n * pitch].reshape(n, pitch)
    tile_at, wide, one = tile.ctypes.data, np.empty(width, np.float64), np.empty(width, np.float32)
    for t in range(first_tile, last_tile):
        first = t * width
        used = min(width, d - first)
        if used < width:
            clear(tile)
        for k in range(n):
            for x in range(used):
                value = rows[k, first + x]
                tile[k, x] = value if value == value else np.float32(np.inf)  # a NaN has no place in an order
        if selects is not None:
            for offset in range(0, 4 * width, LINE):
                select_middle(tile_at + offset, 4 * pitch, n, start, stop - 1)
        else:
            exchange(tile_at, 4 * pitch, network)
        average(tile, start, stop, wide, one)
        for x in range(used):
            out[first + x] = one[x]
