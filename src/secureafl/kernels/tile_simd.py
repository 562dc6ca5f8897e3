"""The inner loops over one tile, in explicit vectors. `tile_plain` has the same functions in plain loops.

A tile is a range of coordinates of all votes, small enough to stay in cache: row after row of `row_bytes` bytes.
A chunk is BLOCK coordinates of all r rows of one client, row after row: the update, the base model, the pair rows.
Rows are stored as the type of `kind`, see `simd.load_stored`. Arguments called `*_at` are addresses.
"""

from __future__ import annotations

import numpy as np

from secureafl.kernels import simd
from secureafl.kernels.compiling import inner
from secureafl.kernels.simd import VECTOR_BYTES as V
from secureafl.kernels.simd import (
    add,
    add_wide,
    fma,
    larger,
    load,
    load_stored,
    mul,
    no_nan,
    smaller,
    splat,
    store,
    sub,
    where_le,
    where_lt,
)

NUM_COUNTS = 4  # rounds of a selection that only count

prefetch = simd.prefetch


@inner
def combine(chunk_at, kind, weights, base_scale, here_at, out_at):  # type: ignore[no-untyped-def]
    """out = w_0 g + w_1 (here - base_scale base) + sum of w_j row_j over one chunk; NaN becomes +inf.

    Where w_1 is 0, the base model is not read.
    """
    a = b = c = d = splat(np.float32(0))
    if weights[1] != 0:
        weight, scale = splat(weights[1]), splat(-base_scale)
        a = mul(weight, fma(scale, load_stored(chunk_at, 4, kind), load(here_at)))
        b = mul(weight, fma(scale, load_stored(chunk_at, 5, kind), load(here_at + V)))
        c = mul(weight, fma(scale, load_stored(chunk_at, 6, kind), load(here_at + 2 * V)))
        d = mul(weight, fma(scale, load_stored(chunk_at, 7, kind), load(here_at + 3 * V)))
    for j in range(len(weights)):
        if j != 1:
            weight = splat(weights[j])
            a = fma(weight, load_stored(chunk_at, 4 * j, kind), a)
            b = fma(weight, load_stored(chunk_at, 4 * j + 1, kind), b)
            c = fma(weight, load_stored(chunk_at, 4 * j + 2, kind), c)
            d = fma(weight, load_stored(chunk_at, 4 * j + 3, kind), d)
    store(out_at, no_nan(a))
    store(out_at + V, no_nan(b))
    store(out_at + 2 * V, no_nan(c))
    store(out_at + 3 * V, no_nan(d))


@inner
def accumulate(chunk_at, stride, parts, kind, num_rows, base_scale, here_at, moved_at, sums_at):  # type: ignore[no-untyped-def]
    """Add each row's products with `moved`, over some chunks a stride apart, to its eight float64 sums.

    In the base model's place stands the gap here - base_scale base.
    """
    scale, zero = splat(-base_scale), splat(np.float32(0))
    low, high = zero, zero
    for part in range(parts):
        at, here, moved = chunk_at + part * stride, here_at + part * 4 * V, moved_at + part * 4 * V
        low = fma(load(moved), fma(scale, load_stored(at, 4, kind), load(here)), low)
        high = fma(load(moved + V), fma(scale, load_stored(at, 5, kind), load(here + V)), high)
        low = fma(load(moved + 2 * V), fma(scale, load_stored(at, 6, kind), load(here + 2 * V)), low)
        high = fma(load(moved + 3 * V), fma(scale, load_stored(at, 7, kind), load(here + 3 * V)), high)
    add_wide(sums_at + V, add(low, high))
    for j in range(num_rows):
        if j != 1:
            low, high = zero, zero
            for part in range(parts):
                at, moved = chunk_at + part * stride, moved_at + part * 4 * V
                low = fma(load(moved), load_stored(at, 4 * j, kind), low)
                high = fma(load(moved + V), load_stored(at, 4 * j + 1, kind), high)
                low = fma(load(moved + 2 * V), load_stored(at, 4 * j + 2, kind), low)
                high = fma(load(moved + 3 * V), load_stored(at, 4 * j + 3, kind), high)
            add_wide(sums_at + j * V, add(low, high))


@inner
def average_pairs(tile_at, row_bytes, num_rows):  # type: ignore[no-untyped-def]
    """Row b = the mean of rows 2b and 2b + 1; a last row without a partner stays as it is. Exact up to one rounding."""
    half = splat(np.float32(0.5))
    for b in range((num_rows + 1) // 2):
        first = tile_at + 2 * b * row_bytes
        for offset in range(0, row_bytes, V):
            value = load(first + offset)
            if 2 * b + 1 < num_rows:
                value = mul(half, add(value, load(first + row_bytes + offset)))
            store(tile_at + b * row_bytes + offset, value)


@inner
def exchange(tile_at, row_bytes, network):  # type: ignore[no-untyped-def]
    """Run a sorting network over all columns of a tile."""
    for comparator in range(len(network)):
        low_at = tile_at + network[comparator, 0] * row_bytes
        high_at = tile_at + network[comparator, 1] * row_bytes
        for offset in range(0, row_bytes, 2 * V):
            a, b = load(low_at + offset), load(high_at + offset)
            c, d = load(low_at + offset + V), load(high_at + offset + V)
            store(low_at + offset, smaller(a, b))
            store(high_at + offset, larger(a, b))
            store(low_at + offset + V, smaller(c, d))
            store(high_at + offset + V, larger(c, d))


@inner
def _split(column_at, row_bytes, num_rows, pivot, low, high):  # type: ignore[no-untyped-def]
    """How many values are at most the pivot, the largest of them (at least `low`), the smallest other (at most `high`).

    Two rows at a time, so that one running sum need not wait for itself.
    """
    one, count, below, above = splat(np.float32(1)), splat(np.float32(0)), low, high
    other_count, other_below, other_above = count, low, high
    for k in range(0, num_rows - 1, 2):
        value, other = load(column_at + k * row_bytes), load(column_at + (k + 1) * row_bytes)
        count = where_le(value, pivot, add(count, one), count)
        below = where_le(value, pivot, larger(value, below), below)
        above = where_le(value, pivot, above, smaller(value, above))
        other_count = where_le(other, pivot, add(other_count, one), other_count)
        other_below = where_le(other, pivot, larger(other, other_below), other_below)
        other_above = where_le(other, pivot, other_above, smaller(other, other_above))
    if num_rows % 2:
        value = load(column_at + (num_rows - 1) * row_bytes)
        count = where_le(value, pivot, add(count, one), count)
        below = where_le(value, pivot, larger(value, below), below)
        above = where_le(value, pivot, above, smaller(value, above))
    return add(count, other_count), larger(below, other_below), smaller(above, other_above)


@inner
def _count(column_at, row_bytes, num_rows, pivot):  # type: ignore[no-untyped-def]
    """How many values are at most the pivot."""
    one, zero = splat(np.float32(1)), splat(np.float32(0))
    a, b, c, d = zero, zero, zero, zero
    whole = num_rows // 4 * 4
    for k in range(0, whole, 4):
        at = column_at + k * row_bytes
        a = where_le(load(at), pivot, add(a, one), a)
        b = where_le(load(at + row_bytes), pivot, add(b, one), b)
        c = where_le(load(at + 2 * row_bytes), pivot, add(c, one), c)
        d = where_le(load(at + 3 * row_bytes), pivot, add(d, one), d)
    for k in range(whole, num_rows):
        a = where_le(load(column_at + k * row_bytes), pivot, add(a, one), a)
    return add(add(a, b), add(c, d))


@inner
def _pivot(low, high, before, until, middle, halve):  # type: ignore[no-untyped-def]
    """A value in [low, high): interpolated from the counts, or halfway in the order of float bits."""
    halved = simd.middle_key(low, high)
    if halve:
        return halved
    pivot = fma(sub(high, low), simd.div(sub(middle, before), sub(until, before)), low)
    pivot = where_le(low, pivot, pivot, halved)  # also where it is NaN
    return where_lt(pivot, high, pivot, halved)


@inner
def _extremes(column_at, row_bytes, num_rows):  # type: ignore[no-untyped-def]
    first, last = load(column_at), load(column_at + (num_rows - 1) * row_bytes)
    low, high, other_low, other_high = first, first, last, last
    for k in range(1, num_rows - 1, 2):
        value, other = load(column_at + k * row_bytes), load(column_at + (k + 1) * row_bytes)
        low, high = smaller(value, low), larger(value, high)
        other_low, other_high = smaller(other, other_low), larger(other, other_high)
    return smaller(low, other_low), larger(high, other_high)


@inner
def select_middle(column_at, row_bytes, num_rows, lower, upper):  # type: ignore[no-untyped-def]
    """Put the ordered values `lower` and `upper` (equal or neighbours) of sixteen columns into the rows so numbered.

    A few rounds that only count values up to a pivot leave a narrow range. From then on its ends are values of the
    column, with the update between them; each round moves one end to the nearest value on the update's side of the
    pivot. Every fourth pivot halves the range in the order of float bits, so that no data can make it slow.
    """
    least, most = _extremes(column_at, row_bytes, num_rows)
    low, high = least, most
    before, until = splat(np.float32(0)), splat(np.float32(num_rows))  # how many are < low, or <= it, and <= high
    rank, wanted, middle = splat(np.float32(lower)), splat(np.float32(lower + 1)), splat(np.float32(lower + 0.5))
    for _ in range(NUM_COUNTS):
        pivot = _pivot(low, high, before, until, middle, False)
        count = _count(column_at, row_bytes, num_rows, pivot)
        high, until = where_le(wanted, count, pivot, high), where_le(wanted, count, count, until)
        low, before = where_le(wanted, count, low, pivot), where_le(wanted, count, before, count)
    _, _, above = _split(column_at, row_bytes, num_rows, low, low, most)
    _, below, _ = _split(column_at, row_bytes, num_rows, high, least, high)
    low, high = where_lt(splat(np.float32(0)), before, above, least), below
    step = 0
    while not simd.same(low, high):
        pivot = _pivot(low, high, before, until, middle, step % 4 == 3)
        count, below, above = _split(column_at, row_bytes, num_rows, pivot, low, high)
        low_if_below = where_le(count, wanted, below, low)  # count = wanted: `below` is the update
        high_if_above = where_le(rank, count, above, high)  # count = rank: `above` is the update
        low = where_le(wanted, count, low_if_below, above)
        high = where_le(wanted, count, below, high_if_above)
        before = where_le(wanted, count, before, count)
        until = where_le(wanted, count, count, until)
        step += 1
    if upper != lower:
        count, below, above = _split(column_at, row_bytes, num_rows, low, low, splat(np.float32(np.inf)))
        high = where_le(splat(np.float32(upper + 1)), count, low, above)
    store(column_at + lower * row_bytes, low)
    store(column_at + upper * row_bytes, high)
