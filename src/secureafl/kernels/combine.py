"""Passes over the remembered rows of all clients: inner products in, estimated updates out.

Shapes: n = clients, d = parameters, r = rows kept per client: row 0 the update, row 1 the base model it was
computed on, the others pair rows. Products are accumulated in float64. Each client is one thread's work, so results
do not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from secureafl.kernels.threads import spread
from secureafl.types import Vector

BLOCK = 1024
SUMS = {"reassoc", "contract", "nsz"}  # let reductions use vector units; NaN and inf keep their meaning


@njit(cache=True, error_model="numpy", fastmath=SUMS)
def squared_distance(a, b):  # type: ignore[no-untyped-def]
    """|a - b|^2 of two (d,) vectors."""
    total = 0.0
    for x in range(len(a)):
        gap = np.float64(a[x]) - np.float64(b[x])
        total += gap * gap
    return total


@njit(cache=True, error_model="numpy", fastmath=SUMS)
def gram(rows):  # type: ignore[no-untyped-def]
    """(r, d) -> (r, r): inner products of one client's rows with each other; zero where the base model is involved."""
    r, d = rows.shape
    out = np.zeros((r, r), np.float64)
    for a in range(r):
        for b in range(a + 1):
            if a != 1 and b != 1:
                total = 0.0
                for x in range(d):
                    total += np.float64(rows[a, x]) * np.float64(rows[b, x])
                out[a, b] = total
                out[b, a] = total
    return out


def gap_products(rows: Vector, params: Vector) -> npt.NDArray[np.float64]:
    """(n, r, d), (d,) -> (n, r): each row's inner product with the client's gap = params - base model.

    In the base model's own place stands gap . gap.
    """
    spread(rows.size)
    products: npt.NDArray[np.float64] = _gap_products(rows, params)
    return products


def combine(rows: Vector, weights: npt.NDArray[np.float64], params: Vector, out: Vector) -> None:
    """Write each client's weighted sum of its rows into `out` (n, d); the base model's weight applies to the gap."""
    spread(rows.size)
    _combine(rows, weights, params, out)


@njit(parallel=True, cache=True, error_model="numpy", fastmath=SUMS)
def _gap_products(rows, params):  # type: ignore[no-untyped-def]
    n, r, d = rows.shape
    out = np.zeros((n, r), np.float64)
    for k in prange(n):
        gap = np.empty(BLOCK, np.float64)
        for first in range(0, d, BLOCK):
            width = min(BLOCK, d - first)
            squares = 0.0
            for x in range(width):
                gap[x] = params[first + x] - rows[k, 1, first + x]
                squares += gap[x] * gap[x]
            out[k, 1] += squares
            for j in range(r):
                if j != 1:
                    total = 0.0
                    for x in range(width):
                        total += np.float64(rows[k, j, first + x]) * gap[x]
                    out[k, j] += total
    return out


@njit(parallel=True, cache=True, error_model="numpy")
def _combine(rows, weights, params, out):  # type: ignore[no-untyped-def]
    n, r, d = rows.shape
    for k in prange(n):
        for first in range(0, d, BLOCK):
            last = min(first + BLOCK, d)
            for x in range(first, last):
                gap = params[x] - rows[k, 1, x]
                out[k, x] = weights[k, 0] * rows[k, 0, x] + weights[k, 1] * gap
            for j in range(2, r):
                weight = weights[k, j]
                if weight != 0.0:
                    for x in range(first, last):
                        out[k, x] += weight * rows[k, j, x]
