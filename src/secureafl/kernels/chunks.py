"""Where the rows of all clients lie in memory, as the kernels see it, and plain passes over the rows of single clients.

Coordinates come in blocks of BLOCK. A chunk is one block of all r rows of one client: the update g, the base model w,
pair rows. `Chunks.at[k]` is the address of client k's first chunk; the next ones follow every `block_bytes`, the size
of one block of all clients of a page.

Rows are float32, or half precision with a scale per row. In half precision the base model is stored as its difference
from `origin`, because differences of models are what counts and are much smaller than models.

Shapes: n = clients, d = parameters, r = rows per client. Products are accumulated in float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from secureafl.kernels.simd import BLOCK, add_products
from secureafl.kernels.threads import spread
from secureafl.types import Vector

NUM_PARTS = 16  # ranges of blocks whose sums are kept apart; fixed, so that threads do not change results

Float = npt.NDArray[np.float64]

pack: Any = cgutils.pack_array
populate: Any = populate_array
instruction: Any = intrinsic  # its results exist only inside kernels, out of a type checker's sight


class Chunks(NamedTuple):
    """Addresses of all rows. Whoever makes it keeps the memory alive.

    kind    float32(0) or, for half precision, uint16(0): only its type matters
    scales  (n, r) what stored numbers are multiples of; 1 in float32
    origin  (d,) what base models are differences from, or empty in float32
    threads how many threads a pass may use, 0 for all
    """

    at: npt.NDArray[np.int64]
    block_bytes: int
    chunk_bytes: int
    kind: np.generic
    scales: Vector
    origin: Vector
    threads: int


@instruction
def stored(typingctx, address, index, kind):  # type: ignore[no-untyped-def]
    """The index-th number after an address, stored as the type of `kind`, as a float32."""
    number, bits, word = ir.FloatType(), ir.IntType(16), ir.IntType(32)

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if kind == types.float32:
            place = builder.inttoptr(builder.add(args[0], builder.mul(args[1], args[1].type(4))), number.as_pointer())
            return builder.load(place, align=4, typ=number)
        # Half precision: put sign, exponent and fraction where float32 has them, then correct the exponent's bias.
        place = builder.inttoptr(builder.add(args[0], builder.mul(args[1], args[1].type(2))), bits.as_pointer())
        half = builder.zext(builder.load(place, align=2, typ=bits), word)
        size = builder.bitcast(builder.shl(builder.and_(half, word(0x7FFF)), word(13)), number)
        size = builder.bitcast(builder.fmul(size, number(2.0**112)), word)
        sign = builder.shl(builder.and_(half, word(0x8000)), word(16))
        return builder.bitcast(builder.or_(size, sign), number)

    return types.float32(types.intp, types.intp, kind), emit


@instruction
def array_at(typingctx, address, count, kind):  # type: ignore[no-untyped-def]
    """An array of the type of `kind` over memory that someone else keeps alive."""

    def emit(context, builder, signature, args):  # type: ignore[no-untyped-def]
        element = context.get_data_type(kind)
        size = ir.IntType(64)(kind.bitwidth // 8)
        array = context.make_array(signature.return_type)(context, builder)
        populate(
            array,
            data=builder.inttoptr(args[0], element.as_pointer()),
            shape=pack(builder, [args[1]]),
            strides=pack(builder, [size]),
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return types.Array(kind, 1, "C")(types.intp, types.intp, kind), emit


@njit(error_model="numpy")
def read_chunk(chunks, k, block, out):  # type: ignore[no-untyped-def]
    """out (r, BLOCK) = the rows of one chunk in their true size, the base model without the origin."""
    at = chunks.at[k] + block * chunks.block_bytes
    for j in range(len(out)):
        scale = chunks.scales[k, j]
        for x in range(BLOCK):
            out[j, x] = scale * stored(at, j * BLOCK + x, chunks.kind)


@njit(error_model="numpy")
def _gap(chunks, params, first, width, base, out):  # type: ignore[no-untyped-def]
    """out = params - base model of one block, zero beyond the last coordinate."""
    for x in range(width):
        here = params[first + x] - chunks.origin[first + x] if len(chunks.origin) else params[first + x]
        out[x] = here - base[x]
    for x in range(width, BLOCK):
        out[x] = 0.0


def gap_products(chunks: Chunks, params: Vector) -> Float:
    """(n, r): each row's inner product with its client's gap = params - base; in the base model's place gap.gap."""
    spread(len(params) * chunks.scales.size, chunks.threads)
    products: Float = _gap_products(chunks, params)
    return products


def moments(chunks: Chunks, params: Vector) -> Float:
    """(r, r): inner products of the first client's rows with each other, the gap standing in the base model's place."""
    spread(len(params) * chunks.scales.shape[1], chunks.threads)
    products: Float = _moments(chunks, params).sum(axis=0)
    return products


def row_products(chunks: Chunks, a: Vector, b: Vector) -> Float:
    """(2, r): inner products of two vectors (d,) with the first client's rows; zero in the base model's place."""
    spread(len(a) * chunks.scales.shape[1], chunks.threads)
    products: Float = _row_products(chunks, a, b).sum(axis=0)
    return products


def estimates(chunks: Chunks, weights: Float, params: Vector, out: Vector) -> None:
    """Write each client's weighted sum of its rows into `out` (n, d); the base model's weight applies to the gap."""
    spread(len(params) * chunks.scales.size, chunks.threads)
    _estimates(chunks, weights, params, out)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _gap_products(chunks, params):  # type: ignore[no-untyped-def]
    n, r = chunks.scales.shape
    d = len(params)
    out = np.zeros((n, r), np.float64)
    for k in prange(n):
        rows, gap, sums = np.empty((r, BLOCK), np.float32), np.empty(BLOCK, np.float32), np.zeros((r, 8), np.float64)
        for block in range((d + BLOCK - 1) // BLOCK):
            first = block * BLOCK
            read_chunk(chunks, k, block, rows)
            _gap(chunks, params, first, min(BLOCK, d - first), rows[1], gap)
            rows[1] = gap
            for j in range(r):
                add_products(sums[j].ctypes.data, rows[j].ctypes.data, gap.ctypes.data)
        for j in range(r):
            out[k, j] = sums[j].sum()
    return out


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _moments(chunks, params):  # type: ignore[no-untyped-def]
    r, d = chunks.scales.shape[1], len(params)
    num_blocks = (d + BLOCK - 1) // BLOCK
    out = np.zeros((NUM_PARTS, r, r), np.float64)
    for part in prange(NUM_PARTS):
        rows, gap = np.empty((r, BLOCK), np.float32), np.empty(BLOCK, np.float32)
        sums = np.zeros((r, r, 8), np.float64)
        for block in range(num_blocks * part // NUM_PARTS, num_blocks * (part + 1) // NUM_PARTS):
            first = block * BLOCK
            read_chunk(chunks, 0, block, rows)
            _gap(chunks, params, first, min(BLOCK, d - first), rows[1], gap)
            rows[1] = gap
            for i in range(r):
                for j in range(i + 1):
                    add_products(sums[i, j].ctypes.data, rows[i].ctypes.data, rows[j].ctypes.data)
        for i in range(r):
            for j in range(r):
                out[part, i, j] = sums[max(i, j), min(i, j)].sum()
    return out


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _row_products(chunks, a, b):  # type: ignore[no-untyped-def]
    r, d = chunks.scales.shape[1], len(a)
    num_blocks = (d + BLOCK - 1) // BLOCK
    out = np.zeros((NUM_PARTS, 2, r), np.float64)
    for part in prange(NUM_PARTS):
        rows, sums = np.empty((r, BLOCK), np.float32), np.zeros((2, r, 8), np.float64)
        both = np.zeros((2, BLOCK), np.float32)
        for block in range(num_blocks * part // NUM_PARTS, num_blocks * (part + 1) // NUM_PARTS):
            first = block * BLOCK
            width = min(BLOCK, d - first)
            for x in range(width):
                both[0, x], both[1, x] = a[first + x], b[first + x]
            both[:, width:] = 0.0
            read_chunk(chunks, 0, block, rows)
            for i in range(2):
                for j in range(r):
                    if j != 1:
                        add_products(sums[i, j].ctypes.data, rows[j].ctypes.data, both[i].ctypes.data)
        for i in range(2):
            for j in range(r):
                out[part, i, j] = sums[i, j].sum()
    return out


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _estimates(chunks, weights, params, out):  # type: ignore[no-untyped-def]
    n, r = chunks.scales.shape
    d = len(params)
    for k in prange(n):
        used = r if weights[k, 1:].any() else 1  # without a correction the update alone is read
        rows, gap = np.empty((used, BLOCK), np.float32), np.empty(BLOCK, np.float32)
        totals = np.empty(BLOCK, np.float64)
        for block in range((d + BLOCK - 1) // BLOCK):
            first = block * BLOCK
            width = min(BLOCK, d - first)
            read_chunk(chunks, k, block, rows)
            if used > 1:
                _gap(chunks, params, first, width, rows[1], gap)
                rows[1] = gap
            totals[:] = 0.0
            for j in range(used):
                for x in range(BLOCK):
                    totals[x] += weights[k, j] * rows[j, x]
            for x in range(width):
                out[k, first + x] = totals[x]
