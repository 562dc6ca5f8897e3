"""Coordinate-wise median, trimmed mean and mean of n vectors.

A block of coordinates of all vectors is copied into cache and ordered there, as far as needed. For the median of few
vectors and for the trimmed mean, by a sorting network, whose compare-and-swap steps are min/max over the block and so
use the machine's vector units; it is pruned to the comparators that the wanted outputs depend on. For the median of
many vectors, by counting how many values lie below a pivot, which takes a handful of rounds.

Shapes: n = vectors, d = parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange

from secureafl.kernels.network import Network, network
from secureafl.kernels.threads import spread
from secureafl.kernels.tiles import exchange, select_middle
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


def mean(rows: Vector) -> Vector:
    """(n, d) -> (d,)."""
    _num_rows(rows)
    return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)


def _num_rows(rows: Vector) -> int:
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"need at least one vector as rows of a matrix, got shape {rows.shape}")
    return len(rows)


def _aggregate(rows: Vector, rule: Rule) -> Vector:
    spread(rows.size)
    width = 128 if len(rows) <= MAX_NETWORK else 32  # so that a tile fits into the first-level cache, or nearly
    out = np.empty(rows.shape[1], np.float32)
    _order(rows, rule, width, out)
    return out


@njit(error_model="numpy")
def line_up(values):  # type: ignore[no-untyped-def]
    """The part of a buffer that begins on a cache line; it must have a line to spare."""
    return values[-(values.ctypes.data // 4) % (LINE // 4) :]


@njit(error_model="numpy")
def tile_pitch(width, rule):  # type: ignore[no-untyped-def]
    """Floats from one row of a tile to the next. Selection walks down one column many times: an odd number of cache
    lines between rows lets a whole column stay in the first-level cache.
    """
    return width + LINE // 4 if rule.selects else width


@njit(error_model="numpy")
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


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _order(rows, rule, width, out):  # type: ignore[no-untyped-def]
    n, d = rows.shape
    num_tiles = (d + width - 1) // width
    num_groups, pitch = min(num_tiles, 64), tile_pitch(width, rule)
    for group in prange(num_groups):
        tile = line_up(np.zeros(n * pitch + LINE // 4, np.float32))[: n * pitch].reshape(n, pitch)
        tile_at, wide, one = tile.ctypes.data, np.empty(width, np.float64), np.empty(width, np.float32)
        for t in range(num_tiles * group // num_groups, num_tiles * (group + 1) // num_groups):
            first = t * width
            used = min(width, d - first)
            tile[:, used:] = 0.0
            for k in range(n):
                for x in range(used):
                    value = rows[k, first + x]
                    tile[k, x] = value if value == value else np.float32(np.inf)  # a NaN has no place in an order
            if rule.selects:
                for offset in range(0, 4 * width, LINE):
                    select_middle(tile_at + offset, 4 * pitch, n, rule.start, rule.stop - 1)
            else:
                exchange(tile_at, 4 * pitch, rule.network)
            average(tile, rule.start, rule.stop, wide, one)
            out[first : first + used] = one[:used]
