"""The server step in one pass over memory.

Coordinates are taken in tiles. While one tile of all clients is in cache, the estimates are combined from their rows,
ordered and averaged, the model is moved, and each row's inner products with the movement are added up: all that the
next step needs to know of the large arrays.

Shapes: n = clients, d = parameters, r = rows of a client. Sums are kept per group of tiles and added in order; groups
depend on n and d alone, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from secureafl.kernels.chunks import Chunks, Float
from secureafl.kernels.compiling import inner, kernel
from secureafl.kernels.order_statistics import LINE, MAX_NETWORK, Rule, average, clear, line_up, tile_pitch
from secureafl.kernels.simd import BLOCK, add_products
from secureafl.kernels.threads import in_parts, num_threads
from secureafl.kernels.tiles import accumulate, average_pairs, combine, exchange, prefetch, select_middle
from secureafl.kernels.vectors import NOTHING, readable, total
from secureafl.types import Vector

NUM_GROUPS = 32


class Step(NamedTuple):
    """What one pass gives.

    direction  (d,) the aggregate of all votes, and the lead
    ahead      (d,) the model after a step of `server_lr` along it
    products   (n, r) inner products of each row, the gap in the base model's place, with ahead - params
    moved      |ahead - params|^2
    """

    direction: Vector
    ahead: Vector
    products: Float
    moved: float


def fused_step(
    chunks: Chunks,
    weights: Float,
    params: Vector,
    sender: int,
    received: Vector | None,
    rule: Rule,
    server_lr: float,
    *,
    lead: Vector | None = None,
    excluded: npt.NDArray[np.bool_] | None = None,
    follow: bool = True,
    order: npt.NDArray[np.int64] | None = None,
    bucket: int = 1,
) -> Step:
    """Combine everyone's rows by `weights` (n, r) and the update that arrived into one step of the model.

    sender    place of the client whose estimate has no vote, n for a newcomer
    received  its update, or None if it has no vote either
    lead      (d,) added to the aggregate
    excluded    (n,) whose estimates have no vote
    follow    whether products are wanted; they are zero if not
    order     the votes' places, the received one last: a permutation
    bucket    so many votes that stand together are averaged before they are ordered; `rule` is for what is left
    """
    n, d = len(weights), len(params)
    voting = np.ones(n, np.bool_) if excluded is None else ~excluded
    if sender < n:
        voting[sender] = False
    num_votes = int(voting.sum()) + (received is not None)
    order = np.arange(num_votes) if order is None else order
    places = np.full(n, -1)
    places[voting] = order[: int(voting.sum())]
    weights32 = weights.astype(np.float32) * chunks.scales
    weights32[:, 1] = weights[:, 1]
    direction, ahead = np.empty(d, np.float32), np.empty(d, np.float32)
    width = tile_width(n)
    num_groups = max(1, min(NUM_GROUPS, -(-d // width)))
    products, squares = np.empty((num_groups if follow else 0, *weights.shape)), np.empty(num_groups)
    updates_alone = not follow and not weights[:, 1:].any()
    needed_bytes = chunks.chunk_bytes // weights.shape[1] if updates_alone else chunks.chunk_bytes
    in_parts(
        _fused_step,
        num_groups,
        num_threads(d * (weights.size + 1), chunks.threads),
        chunks,
        weights32,
        readable(params),
        places,
        num_votes,
        int(order[-1]),
        bucket,
        readable(NOTHING if received is None else received),
        True if rule.selects else None,
        rule.network,
        rule.start,
        rule.stop,
        np.float32(server_lr),
        readable(NOTHING if lead is None else lead),
        needed_bytes,
        width,
        direction,
        ahead,
        products if follow else None,
        squares,
    )
    summed: Float = products.sum(axis=0) if follow else np.zeros(weights.shape)
    summed[:, np.arange(weights.shape[1]) != 1] *= chunks.scales[:, np.arange(weights.shape[1]) != 1]
    return Step(direction, ahead, summed, float(squares.sum()))


def tile_width(num_clients: int) -> int:
    """Coordinates of a tile: it and the clients' chunks stay in the second-level cache, the next ones beside them."""
    return 2 * BLOCK if num_clients <= MAX_NETWORK else BLOCK


@inner
def _prefetch(chunks, k, num_bytes, block, num_blocks):  # type: ignore[no-untyped-def]
    """Fetch the first bytes of a client's next chunks."""
    for part in range(num_blocks):
        at = chunks.at[k] + (block + part) * chunks.block_bytes
        for offset in range(0, num_bytes, LINE):
            prefetch(at + offset)


@kernel
def _fused_step(  # type: ignore[no-untyped-def]
    first_group,
    last_group,
    chunks,
    weights,
    params,
    places,
    votes,
    received_place,
    bucket,
    received,
    selects,
    network,
    start,
    stop,
    server_lr,
    lead,
    needed_bytes,
    width,
    direction,
    ahead,
    products,
    squares,
):
    """The tiles of some groups. `selects` is None where the network orders the values, `products` where none are
    wanted: what serves an argument that is None is not even compiled.
    """
    n, r = weights.shape
    d, num_groups = len(params), len(squares)
    num_tiles, num_blocks, parts = (d + width - 1) // width, (d + BLOCK - 1) // BLOCK, width // BLOCK
    num_buckets = (votes + bucket - 1) // bucket
    pitch = tile_pitch(width, selects is not None)
    row_bytes = 4 * pitch
    tile = line_up(np.zeros(votes * pitch + LINE // 4, np.float32))[: votes * pitch].reshape(votes, pitch)
    small = line_up(np.zeros(3 * width + LINE // 4, np.float32))
    here, moved, out = small[:width], small[width : 2 * width], small[2 * width : 3 * width]
    wide = np.empty(width, np.float64)
    tile_at, here_at, moved_at = tile.ctypes.data, here.ctypes.data, moved.ctypes.data
    for group in range(first_group, last_group):
        squared = np.zeros(8, np.float64)
        if products is not None:
            sums = np.zeros((n, r, 8), np.float64)
        last_tile = num_tiles * (group + 1) // num_groups
        for t in range(num_tiles * group // num_groups, last_tile):
            first = t * width
            used = min(width, d - first)
            for x in range(used, width):
                here[x] = 0.0
                moved[x] = 0.0
            if used < width:
                clear(tile)
            for x in range(used):
                here[x] = params[first + x]
            if len(chunks.origin):
                for x in range(used):
                    here[x] -= chunks.origin[first + x]
            here_blocks = min(parts, num_blocks - t * parts)
            for k in range(n):
                if places[k] >= 0:
                    row_at = tile_at + places[k] * row_bytes
                    for part in range(here_blocks):
                        chunk_at = chunks.at[k] + (t * parts + part) * chunks.block_bytes
                        here_part, row_part = here_at + part * 4 * BLOCK, row_at + part * 4 * BLOCK
                        combine(chunk_at, chunks.kind, weights[k], chunks.scales[k, 1], here_part, row_part)
            if len(received):
                for x in range(used):
                    tile[received_place, x] = received[first + x]
            if bucket == 2:
                average_pairs(tile_at, row_bytes, votes)
            elif bucket > 1:
                for b in range(num_buckets):
                    average(tile, b * bucket, min((b + 1) * bucket, votes), wide, tile[b])
            next_blocks = min(parts, num_blocks - (t + 1) * parts) if t + 1 < last_tile else 0
            if selects is not None:
                num_columns = 4 * width // LINE
                for column in range(num_columns):
                    select_middle(tile_at + column * LINE, row_bytes, num_buckets, start, stop - 1)
            else:
                exchange(tile_at, row_bytes, network)
            average(tile, start, stop, wide, out)
            if len(lead):
                for x in range(used):
                    out[x] += lead[first + x]
            for x in range(used):
                before = params[first + x]
                after = before - server_lr * out[x]  # rounded twice, as the machine does it
                direction[first + x], ahead[first + x] = out[x], after
                moved[x] = after - before
            for part in range(parts):
                moved_part = moved_at + part * 4 * BLOCK
                add_products(squared.ctypes.data, moved_part, moved_part)
            for k in range(n):
                _prefetch(chunks, k, needed_bytes, (t + 1) * parts, next_blocks)
                if products is not None:
                    accumulate(
                        chunks.at[k] + t * parts * chunks.block_bytes,
                        chunks.block_bytes,
                        here_blocks,
                        chunks.kind,
                        r,
                        chunks.scales[k, 1],
                        here_at,
                        moved_at,
                        sums.ctypes.data + k * r * LINE,
                    )
        if products is not None:
            for k in range(n):
                for j in range(r):
                    products[group, k, j] = total(sums[k, j])
        squares[group] = total(squared)
