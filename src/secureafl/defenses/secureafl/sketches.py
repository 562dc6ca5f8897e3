"""A sketch for each client, in blocks of memory that never move.

With `int8` a sketch x takes a quarter of the memory. It is kept as whole numbers and one scale,

    scale = max |x| / 127 ;  kept = round(x / scale)

so what is read differs from what was written by half a scale at most. Whoever keeps a sum of sketches adds and takes
away what is read.

A block is what a snapshot writes or leaves out. Who comes gets the first free place, so that places, and with them what
is saved, follow from who came and went.

Shapes: w = WIDTH.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from secureafl.defenses.secureafl.columns import Clients, Column
from secureafl.history import RowByRow
from secureafl.types import Array, ClientId, StateDict, StateView, Vector

SketchDtype: TypeAlias = Literal["float32", "int8"]

WIDTH = 512
"""Numbers in a sketch."""
BLOCK = 8
"""Sketches in a block of memory."""
LARGEST = 127


class Sketches:
    """Each client's sketch."""

    def __init__(self, dtype: SketchDtype = "float32") -> None:
        self._dtype = np.dtype(dtype)
        self._rounds = dtype == "int8"
        self._blocks: list[Array] = []
        self._written: list[int] = []  # for each block, which write was its last
        self._num_writes = 0
        self._rows = Column(np.int64, -1)  # where each client's stands
        self._scales = Column(np.float32, 0.0)
        self._free: list[int] = []

    @property
    def bytes_each(self) -> int:
        """What a sketch takes."""
        return WIDTH * self._dtype.itemsize

    def __len__(self) -> int:
        return BLOCK * len(self._blocks) - len(self._free)

    def __contains__(self, client: ClientId) -> bool:
        return self._rows[client] >= 0

    def __getitem__(self, client: ClientId) -> Vector:
        """(w,) the sketch; not to be written to."""
        kept: Vector = self._kept(client)
        if self._rounds:
            return np.multiply(kept, np.float32(self._scales[client]), dtype=np.float32)
        return kept

    def __setitem__(self, client: ClientId, sketch: Vector) -> None:
        if client not in self:
            self._rows[client] = self._free_row()
        if self._rounds:
            self._scales[client] = scale = float(np.abs(sketch).max()) / LARGEST
            sketch = np.rint(sketch / np.float32(scale)) if scale > 0.0 else sketch
        self._keep(client, sketch)

    def __delitem__(self, client: ClientId) -> None:
        if client in self:
            self._keep(client, np.zeros(WIDTH, np.float32))
            heapq.heappush(self._free, self._rows[client])
            del self._rows[client], self._scales[client]

    def clients(self) -> Clients:
        """Those that have a sketch."""
        return self._rows.clients()

    def state_dict(self) -> StateDict:
        return {**self._small_state(), "averages": self._all_blocks().whole()}

    def state_view(self) -> StateView:
        """The same, with blocks that are read when they are written: good until the next step."""
        return {**self._small_state(), "averages": self._all_blocks()}

    def _small_state(self) -> StateDict:
        owners, clients = np.full(BLOCK * len(self._blocks), -1, np.int64), self.clients()
        owners[self._rows.values[clients]] = clients
        return {"clients": owners, **({"scales": self._scales.values[clients]} if self._rounds else {})}

    def _all_blocks(self) -> RowByRow:
        return RowByRow(self._written, BLOCK * WIDTH, self._dtype, lambda number: self._blocks[number].reshape(-1))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        owners = np.asarray(state["clients"], np.int64)
        blocks = np.asarray(state["averages"], self._dtype).reshape(-1, BLOCK, WIDTH)
        self._blocks = [block.copy() for block in blocks]
        self._num_writes += len(blocks)
        self._written = list(range(self._num_writes - len(blocks) + 1, self._num_writes + 1))
        self._free = np.flatnonzero(owners < 0).tolist()
        self._rows.load(owners[owners >= 0], np.flatnonzero(owners >= 0))
        if self._rounds:
            self._scales.load(self.clients(), state["scales"])

    def _keep(self, client: ClientId, sketch: Vector) -> None:
        block, place = divmod(self._rows[client], BLOCK)
        self._blocks[block][place] = sketch
        self._num_writes += 1
        self._written[block] = self._num_writes

    def _kept(self, client: ClientId) -> Any:
        block, place = divmod(self._rows[client], BLOCK)
        return self._blocks[block][place]

    def _free_row(self) -> int:
        if not self._free:
            first = BLOCK * len(self._blocks)
            self._blocks.append(np.zeros((BLOCK, WIDTH), self._dtype))
            self._written.append(0)
            self._free = list(range(first, first + BLOCK))
        return heapq.heappop(self._free)
