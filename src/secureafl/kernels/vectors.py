"""Passes over a few single vectors (d,), with sums in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from secureafl.types import Vector

SUMS = {"reassoc", "contract", "nsz"}  # let reductions use vector units; NaN and inf keep their meaning


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
    return Change(y, s, float(np.sqrt(yy)), float(np.sqrt(ss)), sy)


@njit(cache=True, error_model="numpy", fastmath=SUMS)
def dot(a, b):  # type: ignore[no-untyped-def]
    """Inner product."""
    total = 0.0
    for x in range(len(a)):
        total += np.float64(a[x]) * np.float64(b[x])
    return total


@njit(cache=True, error_model="numpy", fastmath=SUMS)
def _change(delta, last_delta, base, last_base, y, s):  # type: ignore[no-untyped-def]
    yy = ss = sy = 0.0
    for x in range(len(delta)):
        up = np.float64(delta[x]) - np.float64(last_delta[x])
        across = np.float64(base[x]) - np.float64(last_base[x])
        y[x], s[x] = up, across
        yy += up * up
        ss += across * across
        sy += up * across
    return yy, ss, sy
