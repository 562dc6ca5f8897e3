"""Passes over a few single vectors (d,), with sums in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from secureafl.kernels.simd import BLOCK, add_products
from secureafl.types import Vector

LARGEST = np.finfo(np.float32).max


class Change(NamedTuple):
    """How an upload differs from its client's reference.

    delta_step, param_step   (d,) g - g_ref and w - w_ref: the next pair (y, s)
    delta_change, param_change   their lengths
    curvature   their inner product
    """

    delta_step: Vector
    param_step: Vector
    delta_change: float
    param_change: float
    curvature: float


def change(delta: Vector, last_delta: Vector, base: Vector, last_base: Vector) -> Change:
    y, s = np.empty_like(delta), np.empty_like(base)
    yy, ss, sy = _change(delta, last_delta, base, last_base, y, s)
    return Change(y, s, float(np.sqrt(yy)), float(np.sqrt(ss)), float(sy))


def dot(a: Vector, b: Vector) -> float:
    """Inner product."""
    return float(_dot(np.ascontiguousarray(a), np.ascontiguousarray(b)))


def moved(params: Vector, direction: Vector, server_lr: np.float32) -> Vector | None:
    """params - server_lr direction, each operation rounded to float32; None if a value is not finite."""
    out = np.empty_like(params)
    return out if _moved(params, direction, server_lr, out) else None


def sketch(delta: Vector, signs: npt.NDArray[np.int8], width: int) -> npt.NDArray[np.float64]:
    """(width,) sums of delta * signs over every width-th coordinate."""
    sums = np.zeros(width)
    _sketch(delta, signs, sums)
    return sums


def pair_products(rows: Vector) -> npt.NDArray[np.float64]:
    """(n, n) inner products of the rows (n, d)."""
    products = np.empty((len(rows), len(rows)))
    _pair_products(rows, products)
    return products


@njit(cache=True, nogil=True, error_model="numpy")
def _dot(a, b):  # type: ignore[no-untyped-def]
    sums = np.zeros(8, np.float64)
    whole = len(a) // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        add_products(sums.ctypes.data, a.ctypes.data + 4 * first, b.ctypes.data + 4 * first)
    for x in range(whole, len(a)):
        sums[x % 8] += np.float64(a[x]) * np.float64(b[x])
    return sums.sum()


@njit(cache=True, nogil=True, error_model="numpy")
def _sketch(delta, signs, sums):  # type: ignore[no-untyped-def]
    width = len(sums)
    whole = len(delta) // width * width
    for first in range(0, whole, width):
        values, their_signs = delta[first : first + width], signs[first : first + width]
        for x in range(width):  # a loop of known length over slices of its own: it becomes vectors
            sums[x] += np.float64(values[x]) * np.float64(their_signs[x])
    for x in range(whole, len(delta)):
        sums[x - whole] += np.float64(delta[x]) * np.float64(signs[x])


@njit(cache=True, nogil=True, error_model="numpy")
def _pair_products(rows, products):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        for j in range(i + 1):
            products[i, j] = products[j, i] = _dot(rows[i], rows[j])


@njit(cache=True, nogil=True, error_model="numpy")
def _change(delta, last_delta, base, last_base, y, s):  # type: ignore[no-untyped-def]
    sums = np.zeros((3, 8), np.float64)
    sums_at, y_at, s_at = sums.ctypes.data, y.ctypes.data, s.ctypes.data
    whole = len(delta) // BLOCK * BLOCK
    for first in range(0, whole, BLOCK):
        for x in range(first, first + BLOCK):
            y[x] = delta[x] - last_delta[x]
            s[x] = base[x] - last_base[x]
        add_products(sums_at, y_at + 4 * first, y_at + 4 * first)
        add_products(sums_at + 64, s_at + 4 * first, s_at + 4 * first)
        add_products(sums_at + 128, s_at + 4 * first, y_at + 4 * first)
    for x in range(whole, len(delta)):
        y[x] = delta[x] - last_delta[x]
        s[x] = base[x] - last_base[x]
        up, across = np.float64(y[x]), np.float64(s[x])
        sums[0, x % 8] += up * up
        sums[1, x % 8] += across * across
        sums[2, x % 8] += across * up
    return sums[0].sum(), sums[1].sum(), sums[2].sum()


@njit(cache=True, nogil=True, error_model="numpy")
def _moved(params, direction, server_lr, out):  # type: ignore[no-untyped-def]
    num_bad = 0
    for x in range(len(params)):
        out[x] = params[x] - server_lr * direction[x]
        num_bad += not (abs(out[x]) <= LARGEST)
    return num_bad == 0
