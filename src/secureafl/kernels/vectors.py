"""Passes over a few single vectors (d,), with sums in float64."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.simd import BLOCK, add_products
from secureafl.types import Vector

Signs = npt.NDArray[np.int8]

LARGEST = np.finfo(np.float32).max
TINY = np.finfo(np.float32).tiny
"""Smaller numbers are denormal: honest gradients hold a few, and a vector full of them would slow every step down."""
NOTHING: Vector = np.empty(0, np.float32)
NO_SIGNS: Signs = np.empty(0, np.int8)


def readable(values: Any) -> Any:
    """The same array, not to be written to. Numba compiles a kernel anew for each combination of arrays that may and
    may not be written to; models may not, copies of them may. So all inputs are made alike.
    """
    if not values.flags.writeable:
        return values
    view = values.view()
    view.setflags(write=False)
    return view


@inner
def total(lanes):  # type: ignore[no-untyped-def]
    """The sum of eight lanes, in order."""
    result = 0.0
    for lane in lanes:
        result += lane
    return result


class Change(NamedTuple):
    """How an update differs from its client's reference.

    delta_step, param_step   (d,) g - g_ref and w - w_ref: the next pair (y, s)
    delta_change, param_change   their lengths
    curvature   their inner product
    """

    delta_step: Vector
    param_step: Vector
    delta_change: float
    param_change: float
    curvature: float


class Measured(NamedTuple):
    """An update in numbers.

    square   |g|^2
    product  g . consensus; 0 without one
    sketch   (width,) sums of g times a sign over every width-th coordinate; empty without signs
    change   how it differs from its client's reference; None without one
    """

    square: float
    product: float
    sketch: npt.NDArray[np.float64]
    change: Change | None


def measure(
    delta: Vector,
    base: Vector,
    reference: tuple[Vector, Vector] | None = None,
    consensus: Vector = NOTHING,
    signs: Signs = NO_SIGNS,
    width: int = BLOCK,
) -> Measured:
    """All that is asked of an update's numbers, in one pass over it.

    reference  its client's last update and the model that was made for
    consensus  (d,) what it is compared with
    signs      (d,) of the sketch, 1 or -1; `width`, a multiple of BLOCK, is the sketch's length
    """
    last_delta, last_base = reference or (NOTHING, NOTHING)
    y, s = np.empty(len(last_delta), np.float32), np.empty(len(last_delta), np.float32)
    sketch = np.zeros(width if len(signs) else 0)
    square, product, yy, ss, sy = _measure(
        readable(delta),
        readable(base),
        readable(last_delta),
        readable(last_base),
        readable(consensus),
        readable(signs),
        y,
        s,
        sketch,
    )
    change = Change(y, s, float(np.sqrt(yy)), float(np.sqrt(ss)), float(sy)) if reference is not None else None
    return Measured(float(square), float(product), sketch, change)


def change(delta: Vector, last_delta: Vector, base: Vector, last_base: Vector) -> Change:
    """How an update and its base model differ from its client's reference, and nothing else."""
    found = measure(delta, base, (last_delta, last_base)).change
    assert found is not None
    return found


def dot(a: Vector, b: Vector) -> float:
    """Inner product."""
    return float(_dot(readable(np.ascontiguousarray(a)), readable(np.ascontiguousarray(b))))


def cosine(a: Vector, b: Vector) -> float | None:
    """The cosine of two vectors; None where one of them is 0."""
    product, first, second = _cosine(readable(np.ascontiguousarray(a)), readable(np.ascontiguousarray(b)))
    lengths = first * second
    return float(product / math.sqrt(lengths)) if lengths > 0.0 else None


def moved(params: Vector, direction: Vector, server_lr: np.float32) -> Vector | None:
    """params - server_lr direction, each operation rounded to float32; None if a value is not finite."""
    out = np.empty_like(params)
    return out if _moved(readable(params), readable(direction), server_lr, out) else None


def without_denormals(values: Vector) -> Vector:
    """The same array, in which denormal numbers have become zero."""
    _flush(values)
    return values


def subtracted(values: Vector, base: Vector) -> Vector:
    """`values`, turned into base - values, in which denormal numbers have become zero."""
    _subtract(values, readable(base))
    return values


def pair_products(rows: Vector) -> npt.NDArray[np.float64]:
    """(n, n) inner products of the rows (n, d)."""
    products = np.empty((len(rows), len(rows)))
    _pair_products(readable(rows), products)
    return products


@kernel
def _dot(a, b):  # type: ignore[no-untyped-def]
    sums = np.zeros(8, np.float64)
    whole = len(a) // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        add_products(sums.ctypes.data, a.ctypes.data + 4 * first, b.ctypes.data + 4 * first)
    for x in range(whole, len(a)):
        sums[x % 8] += np.float64(a[x]) * np.float64(b[x])
    return total(sums)


@kernel
def _cosine(a, b):  # type: ignore[no-untyped-def]
    return _dot(a, b), _dot(a, a), _dot(b, b)


@kernel
def _pair_products(rows, products):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        for j in range(i + 1):
            products[i, j] = products[j, i] = _dot(rows[i], rows[j])


@kernel
def _measure(delta, base, last_delta, last_base, consensus, signs, y, s, sketch):  # type: ignore[no-untyped-def]
    known, compared, width = len(last_delta) > 0, len(consensus) > 0, len(sketch)
    sums = np.zeros((5, 8), np.float64)  # g.g, g.consensus, y.y, s.s, s.y
    sums_at, y_at, s_at = sums.ctypes.data, y.ctypes.data, s.ctypes.data
    delta_at, consensus_at = delta.ctypes.data, consensus.ctypes.data
    whole = len(delta) // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        add_products(sums_at, delta_at + 4 * first, delta_at + 4 * first)
        if compared:
            add_products(sums_at + 64, delta_at + 4 * first, consensus_at + 4 * first)
        if known:
            for x in range(first, first + BLOCK):
                y[x] = delta[x] - last_delta[x]
                s[x] = base[x] - last_base[x]
            add_products(sums_at + 128, y_at + 4 * first, y_at + 4 * first)
            add_products(sums_at + 192, s_at + 4 * first, s_at + 4 * first)
            add_products(sums_at + 256, s_at + 4 * first, y_at + 4 * first)
        if width:
            place = first % width
            for x in range(BLOCK):
                sketch[place + x] += np.float64(delta[first + x]) * np.float64(signs[first + x])
    for x in range(whole, len(delta)):
        here = np.float64(delta[x])
        sums[0, x % 8] += here * here
        if compared:
            sums[1, x % 8] += here * np.float64(consensus[x])
        if known:
            y[x] = delta[x] - last_delta[x]
            s[x] = base[x] - last_base[x]
            up, across = np.float64(y[x]), np.float64(s[x])
            sums[2, x % 8] += up * up
            sums[3, x % 8] += across * across
            sums[4, x % 8] += across * up
        if width:
            sketch[x % width] += here * np.float64(signs[x])
    return total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3]), total(sums[4])


@kernel
def _flush(values):  # type: ignore[no-untyped-def]
    for x in range(len(values)):
        if abs(values[x]) < TINY:
            values[x] = np.float32(0)


@kernel
def _subtract(values, base):  # type: ignore[no-untyped-def]
    for x in range(len(values)):
        here = base[x] - values[x]
        values[x] = np.float32(0) if abs(here) < TINY else here


@kernel
def _moved(params, direction, server_lr, out):  # type: ignore[no-untyped-def]
    num_bad = 0
    for x in range(len(params)):
        out[x] = params[x] - server_lr * direction[x]
        num_bad += not (abs(out[x]) <= LARGEST)
    return num_bad == 0
