"""One vote among many: the passes of a weighted mean that is kept up to date, over the sender's own row.

The sum of all votes is kept in whole numbers. A vote of weight w and vector v adds, in each coordinate,

    round(w v / unit)          a 64-bit integer; `unit` is a power of two

and later takes exactly the same away. So the sum never drifts, and depends neither on the order in which votes came
nor on the number of threads. Weights are whole multiples of 1 / FULL, so the sum of weights is exact too.

Shapes: d = parameters. Other sums are kept in float64, in eight lanes that are added in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.simd import BLOCK, add_products
from secureafl.kernels.vectors import NO_SIGNS, NOTHING, Signs, _dot, readable, total
from secureafl.types import Vector

Sum = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]

FULL = 1 << 20
"""The weight of a whole vote."""
CHUNK = 512
"""Coordinates that are done together: a multiple of BLOCK that fits the nearest cache with all its arrays."""


class Surveyed(NamedTuple):
    """An update in numbers, beside its sender's row.

    square       |g|^2
    consensus    g . consensus; 0 without one
    row          g . row; 0 without one
    change       |g - row|^2; 0 without one
    sketch       (width,) sums of g times a sign over every width-th coordinate; empty without signs
    base_sketch  (width,) the same of the model that g was made for, as it is kept: equal for equal models
    """

    square: float
    consensus: float
    row: float
    change: float
    sketch: Vector
    base_sketch: Vector


class Replaced(NamedTuple):
    """What the step is.

    direction  (d,) the new mean and the lead
    row_square, mean_square, direction_square  squared lengths of the new row, the new mean and the step
    """

    direction: Vector
    row_square: float
    mean_square: float
    direction_square: float


def survey(
    delta: Vector,
    base: Vector,
    row: Vector = NOTHING,
    consensus: Vector = NOTHING,
    signs: Signs = NO_SIGNS,
    width: int = BLOCK,
) -> Surveyed:
    """All that is asked of an update's numbers, in one pass. `width` is a multiple of BLOCK."""
    size = width if len(signs) else 0
    sketch, base_sketch = np.zeros(size, np.float32), np.zeros(size)
    square, along, with_row, change = _survey(
        readable(delta), readable(base), readable(row), readable(consensus), readable(signs), sketch, base_sketch
    )
    kept = base_sketch.astype(np.float32)
    return Surveyed(float(square), float(along), float(with_row), float(change), sketch, kept)


def replace(
    votes: Sum,
    row: Vector,
    delta: Vector,
    of_delta: float,
    of_row: float,
    before: int,
    after: int,
    all_weights: int,
    unit: float,
    lead: float,
    mean: Vector,
) -> Replaced:
    """Put v = of_delta g + of_row row in the row's place, with weight `after` instead of `before`; `votes`, `row` and
    `mean` are written to. `all_weights` is the sum of weights after it. The step is the mean plus lead (v - row).
    """
    direction = np.empty(len(votes), np.float32)
    squares = _replace(
        votes,
        row,
        readable(delta),
        np.float32(of_delta),
        np.float32(of_row),
        float(before),
        float(after),
        1.0 / (FULL * unit),
        FULL * unit / all_weights if all_weights else 0.0,
        np.float32(lead),
        mean,
        direction,
    )
    return Replaced(direction, *(float(square) for square in squares))


def reweigh(votes: Sum, row: Vector, before: int, after: int, unit: float) -> None:
    """Give the vote of this row another weight; `votes` is written to."""
    _reweigh(votes, readable(row), float(before), float(after), 1.0 / (FULL * unit))


def products_with(rows: Vector, vector: Vector) -> Float:
    """(m,) the inner product of each row (m, k) with the vector (k,)."""
    products = np.empty(len(rows))
    _products_with(readable(rows), readable(vector), products)
    return products


@inner
def _add_signed(values, signs, sums):  # type: ignore[no-untyped-def]
    for x in range(len(values)):
        sums[x] += values[x] * signs[x]


@kernel
def _survey(delta, base, row, consensus, signs, sketch, base_sketch):  # type: ignore[no-untyped-def]
    known, compared, width = len(row) > 0, len(consensus) > 0, len(sketch)
    sums = np.zeros((4, 8), np.float64)  # g.g, g.consensus, g.row, |g - row|^2
    change = np.empty(BLOCK, np.float32)
    sums_at, change_at = sums.ctypes.data, change.ctypes.data
    delta_at, row_at, consensus_at = delta.ctypes.data, row.ctypes.data, consensus.ctypes.data
    d, whole, step = len(delta), len(delta) // BLOCK * BLOCK, width if width else CHUNK
    for chunk in range(0, d, step):
        for first in range(chunk, min(chunk + step, whole), BLOCK):
            add_products(sums_at, delta_at + 4 * first, delta_at + 4 * first)
            if compared:
                add_products(sums_at + 64, delta_at + 4 * first, consensus_at + 4 * first)
            if known:
                new, old = delta[first : first + BLOCK], row[first : first + BLOCK]
                for x in range(BLOCK):
                    change[x] = new[x] - old[x]
                add_products(sums_at + 128, delta_at + 4 * first, row_at + 4 * first)
                add_products(sums_at + 192, change_at, change_at)
        if width:
            _add_signed(delta[chunk : chunk + width], signs[chunk : chunk + width], sketch)
            _add_signed(base[chunk : chunk + width], signs[chunk : chunk + width], base_sketch)
    for x in range(whole, d):
        here = np.float64(delta[x])
        sums[0, x % 8] += here * here
        if compared:
            sums[1, x % 8] += here * np.float64(consensus[x])
        if known:
            apart = np.float64(delta[x] - row[x])
            sums[2, x % 8] += here * np.float64(row[x])
            sums[3, x % 8] += apart * apart
    return total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3])


@inner
def _put(votes, row, delta, of_delta, of_row, before, after, units, unit, lead, mean, direction):  # type: ignore[no-untyped-def]
    for x in range(len(votes)):
        old = row[x]
        new = of_delta * delta[x] + of_row * old + np.float32(0)  # no -0, which the next rejection would turn to 0
        votes[x] += np.int64(np.rint(after * units * np.float64(new))) - np.int64(
            np.rint(before * units * np.float64(old))
        )
        middle = np.float32(np.float64(votes[x]) * unit)
        row[x] = new
        mean[x] = middle
        direction[x] = middle + lead * (new - old)


@kernel
def _replace(votes, row, delta, of_delta, of_row, before, after, units, unit, lead, mean, direction):  # type: ignore[no-untyped-def]
    sums = np.zeros((3, 8), np.float64)  # of squares: row, mean, direction
    sums_at, row_at, mean_at, direction_at = sums.ctypes.data, row.ctypes.data, mean.ctypes.data, direction.ctypes.data
    d, whole = len(votes), len(votes) // BLOCK * BLOCK
    for chunk in range(0, d, CHUNK):
        last = min(chunk + CHUNK, d)
        _put(
            votes[chunk:last],
            row[chunk:last],
            delta[chunk:last],
            of_delta,
            of_row,
            before,
            after,
            units,
            unit,
            lead,
            mean[chunk:last],
            direction[chunk:last],
        )
        for first in range(chunk, min(last, whole), BLOCK):  # what was just written is still in the nearest cache
            add_products(sums_at, row_at + 4 * first, row_at + 4 * first)
            add_products(sums_at + 64, mean_at + 4 * first, mean_at + 4 * first)
            add_products(sums_at + 128, direction_at + 4 * first, direction_at + 4 * first)
    for x in range(whole, d):
        sums[0, x % 8] += np.float64(row[x]) * np.float64(row[x])
        sums[1, x % 8] += np.float64(mean[x]) * np.float64(mean[x])
        sums[2, x % 8] += np.float64(direction[x]) * np.float64(direction[x])
    return total(sums[0]), total(sums[1]), total(sums[2])


@kernel
def _reweigh(votes, row, before, after, units):  # type: ignore[no-untyped-def]
    for x in range(len(votes)):
        here = np.float64(row[x])
        votes[x] += np.int64(np.rint(after * units * here)) - np.int64(np.rint(before * units * here))


@kernel
def _products_with(rows, vector, products):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        products[i] = _dot(rows[i], vector)
