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
from numba import njit, prange

from secureafl.kernels.chunks import Chunks, Float
from secureafl.kernels.order_statistics import LINE, MAX_NETWORK, Rule, average, line_up, tile_pitch
from secureafl.kernels.simd import BLOCK, add_products
from secureafl.kernels.threads import spread
from secureafl.kernels.tiles import accumulate, average_pairs, combine, exchange, prefetch, select_middle
from secureafl.types import Vector

NUM_GROUPS = 32
NOTHING: Vector = np.empty(0, np.float32)


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
    silent: npt.NDArray[np.bool_] | None = None,
    follow: bool = True,
    order: npt.NDArray[np.int64] | None = None,
    bucket: int = 1,
) -> Step:
    """Combine everyone's rows by `weights` (n, r) and the update that arrived into one step of the model.

    sender    place of the client whose estimate has no vote, n for a newcomer
    received  its update, or None if it has no vote either
    lead      (d,) added to the aggregate
    silent    (n,) whose estimates have no vote
    follow    whether products are wanted; they are zero if not
    order     the votes' places, the received one last: a permutation
    bucket    so many votes that stand together are averaged before they are ordered; `rule` is for what is left
    """
    n, d = len(weights), len(params)
    voting = np.ones(n, np.bool_) if silent is None else ~silent
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
    products, squares = np.empty((num_groups, *weights.shape), np.float64), np.empty(num_groups, np.float64)
    updates_alone = not follow and not weights[:, 1:].any()
    needed_bytes = chunks.chunk_bytes // weights.shape[1] if updates_alone else chunks.chunk_bytes
    spread(d * (weights.size + 1), chunks.threads)
    _fused_step(
        chunks,
        weights32,
        params,
        places,
        num_votes,
        int(order[-1]),
        bucket,
        NOTHING if received is None else received,
        rule,
        np.float32(server_lr),
        NOTHING if lead is None else lead,
        follow,
        needed_bytes,
        width,
        direction,
        ahead,
        products,
        squares,
    )
    total: Float = products.sum(axis=0)
    total[:, np.arange(weights.shape[1]) != 1] *= chunks.scales[:, np.arange(weights.shape[1]) != 1]
    return Step(direction, ahead, total, float(squares.sum()))


def tile_width(num_clients: int) -> int:
    """Coordinates of a tile: it and the clients' chunks stay in the second-level cache, the next ones beside them."""
    return 2 * BLOCK if num_clients <= MAX_NETWORK else BLOCK


@njit(error_model="numpy")
def _prefetch(chunks, k, num_bytes, block, num_blocks):  # type: ignore[no-untyped-def]
    """Fetch the first bytes of a client's next chunks."""
    for part in range(num_blocks):
        at = chunks.at[k] + (block + part) * chunks.block_bytes
        for offset in range(0, num_bytes, LINE):
            prefetch(at + offset)


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _fused_step(  # type: ignore[no-untyped-def]
    chunks,
    weights,
    params,
    places,
    votes,
    received_place,
    bucket,
    received,
    rule,
    server_lr,
    lead,
    follow,
    needed_bytes,
    width,
    direction,
    ahead,
    products,
    squares,
):
    n, r = weights.shape
    d, num_groups = len(params), len(squares)
    num_tiles, num_blocks, parts = (d + width - 1) // width, (d + BLOCK - 1) // BLOCK, width // BLOCK
    num_buckets = (votes + bucket - 1) // bucket
    pitch = tile_pitch(width, rule)
    row_bytes = 4 * pitch
    for group in prange(num_groups):
        tile = line_up(np.zeros(votes * pitch + LINE // 4, np.float32))[: votes * pitch].reshape(votes, pitch)
        small = line_up(np.zeros(3 * width + LINE // 4, np.float32))
        here, moved, out = small[:width], small[width : 2 * width], small[2 * width : 3 * width]
        wide = np.empty(width, np.float64)
        tile_at, here_at, moved_at = tile.ctypes.data, here.ctypes.data, moved.ctypes.data
        sums = np.zeros((n, r, 8), np.float64)
        squared = np.zeros(8, np.float64)
        last_tile = num_tiles * (group + 1) // num_groups
        for t in range(num_tiles * group // num_groups, last_tile):
            first = t * width
            used = min(width, d - first)
            here[used:] = 0.0
            moved[used:] = 0.0
            if used < width:
                tile[:] = 0.0
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
            if rule.selects:
                num_columns = 4 * width // LINE
                for column in range(num_columns):
                    select_middle(tile_at + column * LINE, row_bytes, num_buckets, rule.start, rule.stop - 1)
            else:
                exchange(tile_at, row_bytes, rule.network)
            average(tile, rule.start, rule.stop, wide, out)
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
                if follow:
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
        for k in range(n):
            for j in range(r):
                products[group, k, j] = sums[k, j].sum()
        squares[group] = squared.sum()
