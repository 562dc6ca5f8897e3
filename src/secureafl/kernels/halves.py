"""Vectors in 16 bits: float16 with a scale of its own for each vector, and bfloat16.

Rounding is to the nearest, to the even one of two. A scale is a power of two, so that it rounds nothing: the largest
value of a vector in float16 lies between 2^14 and 2^15, whatever the length of the vector.

Shapes: d = parameters.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.vectors import readable
from secureafl.types import Vector

HalfType: TypeAlias = Literal["float16", "bfloat16"]
Bits: TypeAlias = npt.NDArray[np.uint16]

CHUNK = 512
LEAST_EXPONENT = -100  # of the largest value: smaller vectors are scaled as if they were so long


def mixed(delta: Vector, of_delta: float, row: Vector, of_row: float) -> Vector:
    """(d,) of_delta delta + of_row row, each operation rounded to float32."""
    out = np.empty_like(delta)
    _mix(readable(delta), np.float32(of_delta), readable(row), np.float32(of_row), out)
    return out


def to_half(values: Vector, kind: HalfType) -> tuple[Bits, float]:
    """The vector in 16 bits, and its scale. What `from_half` makes of them, this leaves as it is."""
    bits = np.empty(len(values), np.uint16)
    if kind == "bfloat16":
        _to_bfloat16(readable(values).view(np.uint32), bits)
        return bits, 1.0
    largest = float(max(values.max(initial=0.0), -values.min(initial=0.0)))
    _, exponent = math.frexp(largest * (1.0 + 2.0**-11))  # what rounding may add
    scale = 2.0 ** (max(exponent, LEAST_EXPONENT) - 15) if largest > 0.0 else 1.0
    _to_float16(readable(values), np.float32(1.0 / scale), bits)
    return bits, scale


def from_half(bits: npt.NDArray[Any], scale: float, kind: HalfType, out: Vector | None = None) -> Vector:
    """(d,) the vector in float32; `out` is written to if it is given."""
    out = np.empty(len(bits), np.float32) if out is None else out
    if kind == "bfloat16":
        _from_bfloat16(readable(bits.view(np.uint16)), out.view(np.uint32))
    else:
        _from_float16(readable(bits.view(np.uint16)), np.float32(scale), out)
    return out


@kernel
def _mix(delta, of_delta, row, of_row, out):  # type: ignore[no-untyped-def]
    for x in range(len(out)):
        out[x] = of_delta * delta[x] + of_row * row[x] + np.float32(0)


@inner
def _round_to_float16(values, shifted, bits):  # type: ignore[no-untyped-def]
    """`shifted` is |values| + 0.5: adding it left of a subnormal number just the digits that float16 has."""
    of_values, of_shifted = values.view(np.uint32), shifted.view(np.uint32)
    for x in range(len(bits)):
        whole = np.int32(of_values[x])
        size = whole & np.int32(0x7FFFFFFF)
        normal = (size + np.int32(0xFFF) + ((size >> np.int32(13)) & np.int32(1)) - np.int32(112 << 23)) >> np.int32(13)
        small = np.int32(of_shifted[x]) - np.int32(0x3F000000)
        half = small if size < np.int32(113 << 23) else normal
        bits[x] = np.uint16(half | ((whole >> np.int32(16)) & np.int32(0x8000)))


@kernel
def _to_float16(values, inverse, bits):  # type: ignore[no-untyped-def]
    scaled, shifted = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    for first in range(0, len(values), CHUNK):
        size = min(CHUNK, len(values) - first)
        for x in range(size):
            scaled[x] = values[first + x] * inverse
            shifted[x] = abs(scaled[x]) + np.float32(0.5)
        _round_to_float16(scaled[:size], shifted[:size], bits[first : first + size])


@inner
def _widen(bits, normal, small):  # type: ignore[no-untyped-def]
    """The digits of float16 in their places of float32, as of a normal number and as of a subnormal one, 2^-14 more."""
    for x in range(len(bits)):
        digits = np.int32(bits[x] & np.uint16(0x7FFF)) << np.int32(13)
        normal[x] = digits + np.int32(112 << 23)
        small[x] = digits + np.int32(113 << 23)


@kernel
def _from_float16(bits, scale, out):  # type: ignore[no-untyped-def]
    normal, small = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.int32)
    normal_values, small_values = normal.view(np.float32), small.view(np.float32)
    for first in range(0, len(bits), CHUNK):
        size = min(CHUNK, len(bits) - first)
        here, there = bits[first : first + size], out[first : first + size]
        _widen(here, normal, small)
        for x in range(size):
            sign = np.float32(1) - np.float32(2) * np.float32(here[x] >> np.uint16(15))
            found = small_values[x] - np.float32(2.0**-14)
            if here[x] & np.uint16(0x7C00):
                found = normal_values[x]
            there[x] = sign * found * scale


@kernel
def _to_bfloat16(words, bits):  # type: ignore[no-untyped-def]
    for x in range(len(bits)):
        word = np.int64(words[x])
        bits[x] = np.uint16((word + np.int64(0x7FFF) + ((word >> np.int64(16)) & np.int64(1))) >> np.int64(16))


@kernel
def _from_bfloat16(bits, words):  # type: ignore[no-untyped-def]
    for x in range(len(bits)):
        words[x] = np.uint32(bits[x]) << np.uint32(16)
