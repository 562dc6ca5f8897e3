"""Sorting networks: fixed lists of compare-and-swap steps, the same for all data, so that whole blocks can run them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Network = npt.NDArray[np.int32]


@lru_cache(maxsize=512)
def network(n: int, start: int, stop: int) -> Network:
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
