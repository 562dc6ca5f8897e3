"""The inner loops over one tile in plain Numba: the same as `tile_simd`, as its fallback and as the test of it."""

from __future__ import annotations

import numpy as np

from secureafl.kernels.chunks import array_at, stored
from secureafl.kernels.compiling import inner
from secureafl.kernels.simd import BLOCK

F32, F64 = np.float32(0), np.float64(0)


@inner
def combine(chunk_at, kind, weights, base_scale, here_at, out_at):  # type: ignore[no-untyped-def]
    here, out = array_at(here_at, BLOCK, F32), array_at(out_at, BLOCK, F32)
    out[:] = 0.0
    if weights[1] != 0:
        for x in range(BLOCK):
            out[x] = weights[1] * (here[x] - base_scale * stored(chunk_at, BLOCK + x, kind))
    for j in range(len(weights)):
        if j != 1:
            for x in range(BLOCK):
                out[x] += weights[j] * stored(chunk_at, j * BLOCK + x, kind)
    for x in range(BLOCK):
        out[x] = out[x] if out[x] == out[x] else np.float32(np.inf)


@inner
def accumulate(chunk_at, stride, parts, kind, num_rows, base_scale, here_at, moved_at, sums_at):  # type: ignore[no-untyped-def]
    here, moved = array_at(here_at, parts * BLOCK, F32), array_at(moved_at, parts * BLOCK, F32)
    sums = array_at(sums_at, 8 * num_rows, F64)
    for j in range(num_rows):
        for part in range(parts):
            for x in range(BLOCK):
                value = stored(chunk_at + part * stride, j * BLOCK + x, kind)
                if j == 1:
                    value = here[part * BLOCK + x] - base_scale * value
                sums[8 * j + x % 8] += moved[part * BLOCK + x] * value


@inner
def average_pairs(tile_at, row_bytes, num_rows):  # type: ignore[no-untyped-def]
    width = row_bytes // 4
    for b in range((num_rows + 1) // 2):
        one, out = array_at(tile_at + 2 * b * row_bytes, width, F32), array_at(tile_at + b * row_bytes, width, F32)
        if 2 * b + 1 < num_rows:
            other = array_at(tile_at + (2 * b + 1) * row_bytes, width, F32)
            for x in range(width):
                out[x] = np.float32(0.5) * (one[x] + other[x])
        else:
            out[:] = one


@inner
def exchange(tile_at, row_bytes, network):  # type: ignore[no-untyped-def]
    width = row_bytes // 4
    for comparator in range(len(network)):
        low = array_at(tile_at + network[comparator, 0] * row_bytes, width, F32)
        high = array_at(tile_at + network[comparator, 1] * row_bytes, width, F32)
        for x in range(width):
            a, b = low[x], high[x]
            low[x] = a if a < b else b
            high[x] = b if a < b else a


@inner
def select_middle(column_at, row_bytes, num_rows, lower, upper):  # type: ignore[no-untyped-def]
    values = np.empty(num_rows, np.float32)
    for lane in range(16):
        for k in range(num_rows):
            values[k] = array_at(column_at + k * row_bytes, 16, F32)[lane]
        values.sort()
        array_at(column_at + lower * row_bytes, 16, F32)[lane] = values[lower]
        array_at(column_at + upper * row_bytes, 16, F32)[lane] = values[upper]


@inner
def prefetch(address):  # type: ignore[no-untyped-def]
    """Nothing: the hardware's own prefetching has to do."""
