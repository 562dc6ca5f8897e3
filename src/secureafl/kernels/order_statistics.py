"""Coordinate-wise median and trimmed mean of n vectors.

A block of coordinates of all clients is copied into cache and run through a sorting network, whose
compare-and-swap steps are plain min/max over the block and so use the machine's vector units. For the median
the network is pruned to the comparators that its one or two middle outputs depend on.

Shapes: n = vectors, d = parameters, B = coordinates in a block.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from secureafl.kernels.threads import spread
from secureafl.types import Vector

BLOCK = 128
MAX_NETWORK = 128  # beyond, sorting whole columns is cheaper than the network

Network = npt.NDArray[np.int32]


def coordinate_median(rows: Vector) -> Vector:
    """(n, d) -> (d,): the middle value of each coordinate, the mean of the two middle ones for even n.

    NaN counts as +inf, so a minority of NaN rows never wins a coordinate.
    """
    n = _num_rows(rows)
    lower, upper = (n - 1) // 2, n // 2
    if n > MAX_NETWORK:
        return _partition_median(rows, lower, upper)
    return _middle_mean(rows, lower, upper + 1)


def trimmed_mean(rows: Vector, num_trimmed: int) -> Vector:
    """(n, d) -> (d,): the mean of each coordinate without its `num_trimmed` smallest and largest values."""
    n = _num_rows(rows)
    if not 0 <= 2 * num_trimmed < n:
        raise ValueError(f"cannot trim {num_trimmed} from each end of {n} vectors")
    if n > MAX_NETWORK:
        ordered = np.sort(rows, axis=0)
        return np.asarray(ordered[num_trimmed : n - num_trimmed].mean(axis=0, dtype=np.float64), np.float32)
    return _middle_mean(rows, num_trimmed, n - num_trimmed)


def mean(rows: Vector) -> Vector:
    """(n, d) -> (d,)."""
    _num_rows(rows)
    return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)


def _num_rows(rows: Vector) -> int:
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"need at least one vector as rows of a matrix, got shape {rows.shape}")
    return len(rows)


def _middle_mean(rows: Vector, start: int, stop: int) -> Vector:
    spread(rows.size)
    out: Vector = _network_mean(rows, _network(len(rows), start, stop), start, stop)
    return out


@lru_cache(maxsize=512)
def _network(n: int, start: int, stop: int) -> Network:
    """Batcher's odd-even merge sort on n wires, pruned to what outputs start..stop-1 depend on. (comparators, 2)"""
    comparators: list[tuple[int, int]] = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        comparators.append((i + j, i + j + k))
            k //= 2
        p *= 2
    needed, kept = set(range(start, stop)), []
    for low, high in reversed(comparators):
        if low in needed or high in needed:
            needed |= {low, high}
            kept.append((low, high))
    return np.array(kept[::-1], np.int32).reshape(-1, 2)


@njit(parallel=True, cache=True, error_model="numpy")
def _network_mean(rows, network, start, stop):  # type: ignore[no-untyped-def]
    """The mean of the ordered values start..stop-1 of each coordinate."""
    n, d = rows.shape
    out = np.empty(d, np.float32)
    for block in prange((d + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        width = min(BLOCK, d - first)
        tile = np.empty((n, BLOCK), np.float32)
        for k in range(n):
            for x in range(width):
                value = rows[k, first + x]
                tile[k, x] = value if value == value else np.float32(np.inf)  # a NaN would leave the network unsorted
        for c in range(len(network)):
            low, high = tile[network[c, 0]], tile[network[c, 1]]
            for x in range(width):
                a, b = low[x], high[x]
                low[x] = a if a < b else b
                high[x] = b if a < b else a
        share = 1.0 / (stop - start)
        for x in range(width):
            total = 0.0
            for k in range(start, stop):
                total += tile[k, x]
            out[first + x] = total * share
    return out


def _partition_median(rows: Vector, lower: int, upper: int) -> Vector:
    out = np.empty(rows.shape[1], np.float32)
    step = max(BLOCK, 2**20 // len(rows))
    for start in range(0, rows.shape[1], step):
        columns = np.ascontiguousarray(rows[:, start : start + step].T)
        columns[np.isnan(columns)] = np.inf
        columns.partition([lower, upper], axis=1)
        out[start : start + step] = 0.5 * columns[:, lower] + 0.5 * columns[:, upper]
    return out
