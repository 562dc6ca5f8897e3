"""Updates and models in fewer bytes: bfloat16, and int8 with a scale for each block of 256 coordinates.

The bytes of a compressed update say what they are, so a journal keeps them as they came (little-endian):

    4 bytes   "SAFW"
    1 byte    1 for bfloat16, 2 for int8
    1 byte    0
    2 bytes   coordinates that share a scale; 0 for bfloat16
    8 bytes   d
    bfloat16  d words: float32 without its lower half, rounded to the nearest, to the even one of two
    int8      one float32 scale per block, the largest size in it / 127; then d bytes, each the nearest multiple of it
    0 to 3 bytes 0, so that the length is 1 more than a multiple of four: no vector of float32 has such a length

A block is as small as 256 so that a layer with large values leaves the others their digits: a scale then costs 1.6% of
the bytes. Decoding rounds once, in float32, and gives the same bits everywhere. What rounding takes from an update its
sender adds to the next one (error feedback), so the sum of what arrives stays within one rounding of what was sent.

Models travel as bfloat16, also where updates are int8: what rounding takes from a model is in no later one. Its
error, 2^-9 of each value at most, is the same for every layer.

Shapes: d = parameters.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from secureafl.kernels.halves import from_half, to_half
from secureafl.kernels.vectors import TINY, without_denormals
from secureafl.types import NamedArrays, Reason, Vector

Wire: TypeAlias = Literal["float32", "bfloat16", "int8"]
"""How updates travel."""

BLOCK = 256
LARGEST = np.float32(127)

_HEADER = struct.Struct("<4sBBHQ")
_MAGIC = b"SAFW"
_BFLOAT16, _INT8 = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class CompressedUpdate:
    """An update that came compressed: its vector, and the bytes as they came."""

    delta: Vector
    compressed: bytes


Reply: TypeAlias = Vector | CompressedUpdate | Reason
"""What came for a ticket: an update, or why there is none in it."""


def compress(values: Vector, wire: Wire) -> bytes:
    """(d,) finite values in fewer bytes."""
    if wire == "int8":
        scales, codes = _to_int8(values)
        body = scales.astype("<f4").tobytes() + codes.tobytes()
        header = _HEADER.pack(_MAGIC, _INT8, 0, BLOCK, len(values))
    else:
        body = to_half(values, "bfloat16")[0].astype("<u2").tobytes()
        header = _HEADER.pack(_MAGIC, _BFLOAT16, 0, 0, len(values))
    return header + body + bytes((1 - len(header) - len(body)) % 4)


def is_compressed(data: bytes) -> bool:
    """Whether these bytes are a compressed update, not a vector of float32."""
    return len(data) % 4 == 1


def decompress(data: bytes, dim: int) -> Vector | Reason:
    """(d,) the values in a compressed update of this length, or what is wrong with it. Denormal numbers are zero.

    Nothing is allocated before the bytes are as many as they have to be. Values may be infinite or NaN.
    """
    if len(data) < _HEADER.size:
        return Reason.MALFORMED
    magic, kind, zero, block, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or zero != 0 or (kind, block > 0) not in ((_BFLOAT16, False), (_INT8, True)):
        return Reason.MALFORMED
    if length != dim:
        return Reason.WRONG_SHAPE
    num_blocks = -(-dim // block) if block else 0
    end = _HEADER.size + (2 * dim if kind == _BFLOAT16 else 4 * num_blocks + dim)
    if len(data) != end + (1 - end) % 4 or any(data[end:]):
        return Reason.MALFORMED
    if kind == _BFLOAT16:
        words = np.frombuffer(data, "<u2", dim, _HEADER.size)
        values = from_half(words.astype(np.uint16), 1.0, "bfloat16")
    else:
        scales = np.frombuffer(data, "<f4", num_blocks, _HEADER.size).astype(np.float32)
        values = _from_int8(scales, np.frombuffer(data, np.int8, dim, end - dim), block)
    return without_denormals(values)


class Feedback:
    """A client's side: compresses its updates, and adds what rounding took from one to the next."""

    def __init__(self, wire: Wire, residual: Vector | None = None) -> None:
        self.wire = wire
        self.residual = residual
        """(d,) what rounding took so far; None before the first update."""

    def compress(self, delta: Vector) -> bytes | None:
        """The update in fewer bytes; None if it is not finite, and nothing changes then."""
        wanted = delta.copy()
        if self.residual is not None and self.residual.shape == delta.shape:
            with np.errstate(over="ignore", invalid="ignore"):
                wanted += self.residual
        if not np.isfinite(wanted).all():
            return None
        compressed = compress(wanted, self.wire)
        sent = decompress(compressed, len(wanted))
        if isinstance(sent, Reason) or not np.isfinite(sent).all():  # rounded up beyond the largest number
            return None
        self.residual = wanted - sent
        return compressed


def rounded(params: Vector) -> Vector:
    """(d,) a model as a client gets it that reads bfloat16."""
    return from_half(to_half(params, "bfloat16")[0], 1.0, "bfloat16")


def compress_model(arrays: NamedArrays) -> NamedArrays:
    """A model with its floating-point arrays in bfloat16, as uint16; those that take 16 bits stay what they are."""
    return {
        name: to_half(array.astype(np.float32).reshape(-1), "bfloat16")[0].reshape(array.shape)
        if array.dtype.kind == "f" and array.dtype.itemsize > 2
        else array
        for name, array in arrays.items()
    }


def decompress_model(arrays: NamedArrays, dtypes: dict[str, str]) -> NamedArrays:
    """The model that `compress_model` compressed; `dtypes` are those of its floating-point arrays."""
    return {
        name: from_half(array.reshape(-1), 1.0, "bfloat16").reshape(array.shape).astype(dtypes[name])
        if name in dtypes and array.dtype == np.uint16
        else array
        for name, array in arrays.items()
    }


def _to_int8(values: Vector) -> tuple[Vector, np.ndarray[tuple[int], np.dtype[np.int8]]]:
    """Each block's scale, and (d,) multiples of it."""
    num_blocks = -(-len(values) // BLOCK)
    blocks = np.zeros((num_blocks, BLOCK), np.float32)
    blocks.reshape(-1)[: len(values)] = values
    scales = np.abs(blocks).max(axis=1, initial=0.0) / LARGEST
    scales[scales < TINY] = 0.0
    np.divide(blocks, scales[:, None], out=blocks, where=scales[:, None] > 0.0)
    blocks[scales == 0.0] = 0.0
    codes = np.clip(np.rint(blocks), -LARGEST, LARGEST).astype(np.int8)
    return scales, codes.reshape(-1)[: len(values)]


def _from_int8(scales: Vector, codes: np.ndarray[tuple[int], np.dtype[np.int8]], block: int) -> Vector:
    values = codes.astype(np.float32)
    num_whole = len(codes) // block
    whole = values[: num_whole * block].reshape(num_whole, block)
    with np.errstate(over="ignore", invalid="ignore"):  # a hostile scale: the server refuses what is not finite
        whole *= scales[:num_whole, None]
        values[num_whole * block :] *= scales[num_whole:]
    return values
