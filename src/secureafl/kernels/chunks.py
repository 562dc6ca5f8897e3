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
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.simd import BLOCK, add_products
from secureafl.kernels.threads import in_parts, num_threads
from secureafl.kernels.vectors import readable, total
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


@inner
def read_chunk(chunks, k, block, out):  # type: ignore[no-untyped-def]
    """out (r, BLOCK) = the rows of one chunk in their true size, the base model without the origin."""
    at = chunks.at[k] + block * chunks.block_bytes
    for j in range(len(out)):
        scale = chunks.scales[k, j]
        for x in range(BLOCK):
            out[j, x] = scale * stored(at, j * BLOCK + x, chunks.kind)


@inner
def _gap(chunks, params, first, width, base, out):  # type: ignore[no-untyped-def]
    """out = params - base model of one block, zero beyond the last coordinate."""
    for x in range(width):
        here = params[first + x] - chunks.origin[first + x] if len(chunks.origin) else params[first + x]
        out[x] = here - base[x]
    for x in range(width, BLOCK):
        out[x] = 0.0


def gap_products(chunks: Chunks, params: Vector) -> Float:
    """(n, r): each row's inner product with its client's gap = params - base; in the base model's place gap.gap."""
    products = np.zeros(chunks.scales.shape)
    threads = num_threads(len(params) * chunks.scales.size, chunks.threads)
    in_parts(_gap_products, len(products), threads, chunks, readable(params), products)
    return products


def moments(chunks: Chunks, params: Vector) -> Float:
    """(r, r): inner products of the first client's rows with each other, the gap standing in the base model's place."""
    r = chunks.scales.shape[1]
    parts = np.zeros((NUM_PARTS, r, r))
    in_parts(_moments, NUM_PARTS, num_threads(len(params) * r, chunks.threads), chunks, readable(params), parts)
    return np.asarray(parts.sum(axis=0))


def row_square(chunks: Chunks, row: int, dim: int) -> float:
    """The square of one row of the first client: as `moments` has it, without the rest."""
    parts = np.zeros(NUM_PARTS)
    _row_squares(chunks, row, dim, parts)
    return float(sum(parts.tolist()))  # in order, as `moments` adds them


def row_products(chunks: Chunks, a: Vector, b: Vector) -> Float:
    """(2, r): inner products of two vectors (d,) with the first client's rows; zero in the base model's place."""
    r = chunks.scales.shape[1]
    parts = np.zeros((NUM_PARTS, 2, r))
    threads = num_threads(len(a) * r, chunks.threads)
    in_parts(_row_products, NUM_PARTS, threads, chunks, readable(a), readable(b), parts)
    return np.asarray(parts.sum(axis=0))


def estimates(chunks: Chunks, weights: Float, params: Vector, out: Vector) -> None:
    """Write each client's weighted sum of its rows into the first n rows of `out`; the base model's weight applies to
    the gap.
    """
    threads = num_threads(len(params) * chunks.scales.size, chunks.threads)
    in_parts(_estimates, len(chunks.scales), threads, chunks, weights, readable(params), out)


@inner
def _copy(values, out):  # type: ignore[no-untyped-def]
    for x in range(len(out)):
        out[x] = values[x]


@inner
def _blocks_of(part, d):  # type: ignore[no-untyped-def]
    """The first block of a part, and the first of the next."""
    num_blocks = (d + BLOCK - 1) // BLOCK
    return num_blocks * part // NUM_PARTS, num_blocks * (part + 1) // NUM_PARTS


@inner
def _read_with_gap(chunks, k, block, params, rows, gap):  # type: ignore[no-untyped-def]
    """rows (r, BLOCK) of one chunk with the gap in the base model's place."""
    read_chunk(chunks, k, block, rows)
    _gap(chunks, params, block * BLOCK, min(BLOCK, len(params) - block * BLOCK), rows[1], gap)
    _copy(gap, rows[1])


@kernel
def _gap_products(first_k, last_k, chunks, params, out):  # type: ignore[no-untyped-def]
    r, d = chunks.scales.shape[1], len(params)
    for k in range(first_k, last_k):
        rows, gap, sums = np.empty((r, BLOCK), np.float32), np.empty(BLOCK, np.float32), np.zeros((r, 8), np.float64)
        for block in range((d + BLOCK - 1) // BLOCK):
            _read_with_gap(chunks, k, block, params, rows, gap)
            for j in range(r):
                add_products(sums[j].ctypes.data, rows[j].ctypes.data, gap.ctypes.data)
        for j in range(r):
            out[k, j] = total(sums[j])


@kernel
def _moments(first_part, last_part, chunks, params, out):  # type: ignore[no-untyped-def]
    r = chunks.scales.shape[1]
    for part in range(first_part, last_part):
        rows, gap = np.empty((r, BLOCK), np.float32), np.empty(BLOCK, np.float32)
        sums = np.zeros((r, r, 8), np.float64)
        begin, end = _blocks_of(part, len(params))
        for block in range(begin, end):
            _read_with_gap(chunks, 0, block, params, rows, gap)
            for i in range(r):
                for j in range(i + 1):
                    add_products(sums[i, j].ctypes.data, rows[i].ctypes.data, rows[j].ctypes.data)
        for i in range(r):
            for j in range(r):
                out[part, i, j] = total(sums[max(i, j), min(i, j)])


@kernel
def _row_squares(chunks, row, d, out):  # type: ignore[no-untyped-def]
    here, sums = np.empty(BLOCK, np.float32), np.zeros(8, np.float64)
    scale = chunks.scales[0, row]
    for part in range(NUM_PARTS):
        first, last = _blocks_of(part, d)
        for lane in range(8):
            sums[lane] = 0.0
        for block in range(first, last):
            at = chunks.at[0] + block * chunks.block_bytes
            for x in range(BLOCK):
                here[x] = scale * stored(at, row * BLOCK + x, chunks.kind)
            add_products(sums.ctypes.data, here.ctypes.data, here.ctypes.data)
        out[part] = total(sums)


@kernel
def _row_products(first_part, last_part, chunks, a, b, out):  # type: ignore[no-untyped-def]
    r, d = chunks.scales.shape[1], len(a)
    for part in range(first_part, last_part):
        rows, sums = np.empty((r, BLOCK), np.float32), np.zeros((2, r, 8), np.float64)
        both = np.zeros((2, BLOCK), np.float32)
        begin, end = _blocks_of(part, d)
        for block in range(begin, end):
            first = block * BLOCK
            width = min(BLOCK, d - first)
            for x in range(width):
                both[0, x], both[1, x] = a[first + x], b[first + x]
            for x in range(width, BLOCK):
                both[0, x] = both[1, x] = 0.0
            read_chunk(chunks, 0, block, rows)
            for i in range(2):
                for j in range(r):
                    if j != 1:
                        add_products(sums[i, j].ctypes.data, rows[j].ctypes.data, both[i].ctypes.data)
        for i in range(2):
            for j in range(r):
                out[part, i, j] = total(sums[i, j])


@kernel
def _estimates(first_k, last_k, chunks, weights, params, out):  # type: ignore[no-untyped-def]
    r, d = chunks.scales.shape[1], len(params)
    for k in range(first_k, last_k):
        used = r if weights[k, 1:].any() else 1  # without a correction the update alone is read
        rows, gap = np.empty((used, BLOCK), np.float32), np.empty(BLOCK, np.float32)
        totals = np.empty(BLOCK, np.float64)
        for block in range((d + BLOCK - 1) // BLOCK):
            first = block * BLOCK
            if used > 1:
                _read_with_gap(chunks, k, block, params, rows, gap)
            else:
                read_chunk(chunks, k, block, rows)
            for x in range(BLOCK):
                totals[x] = 0.0
            for j in range(used):
                for x in range(BLOCK):
                    totals[x] += weights[k, j] * rows[j, x]
            for x in range(min(BLOCK, d - first)):
                out[k, first + x] = totals[x]
