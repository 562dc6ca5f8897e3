"""A sketch for each client, in blocks of memory that never move.

With `int8` a sketch x takes a quarter of the memory. It is kept as whole numbers and one scale,

    scale = max |x| / 127 ;  kept = round(x / scale)

so what is read differs from what was written by half a scale at most. Whoever keeps a sum of sketches adds and takes
away what is read.

Shapes: w = WIDTH.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from secureafl.defenses.secureafl.columns import Clients, Column
from secureafl.types import Array, ClientId, StateDict, Vector

SketchDtype: TypeAlias = Literal["float32", "int8"]

WIDTH = 512
"""Numbers in a sketch."""
BLOCK = 1024
"""Sketches in a block of memory."""
LARGEST = 127


class Sketches:
    """Each client's sketch."""

    def __init__(self, dtype: SketchDtype = "float32") -> None:
        self._dtype = np.dtype(dtype)
        self._rounds = dtype == "int8"
        self._blocks: list[Array] = []
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
        self._kept(client)[:] = sketch

    def __delitem__(self, client: ClientId) -> None:
        if client in self:
            self._free.append(self._rows[client])
            del self._rows[client], self._scales[client]

    def clients(self) -> Clients:
        """Those that have a sketch."""
        return self._rows.clients()

    def state_dict(self) -> StateDict:
        clients = self.clients()
        kept = [self._kept(client) for client in clients.tolist()]
        state: StateDict = {"clients": clients, "averages": np.array(kept, self._dtype).reshape(-1, WIDTH)}
        return {**state, "scales": self._scales.values[clients]} if self._rounds else state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients, kept = np.asarray(state["clients"], np.int64), np.asarray(state["averages"], self._dtype)
        self._blocks, self._free = [], []
        for first in range(0, len(clients), BLOCK):
            self._blocks.append(np.empty((BLOCK, WIDTH), self._dtype))
            self._blocks[-1][: len(kept) - first] = kept[first : first + BLOCK]
        self._free = list(range(len(clients), BLOCK * len(self._blocks)))[::-1]
        self._rows.load(clients, np.arange(len(clients)))
        if self._rounds:
            self._scales.load(clients, state["scales"])

    def _kept(self, client: ClientId) -> Any:
        block, place = divmod(self._rows[client], BLOCK)
        return self._blocks[block][place]

    def _free_row(self) -> int:
        if not self._free:
            first = BLOCK * len(self._blocks)
            self._blocks.append(np.empty((BLOCK, WIDTH), self._dtype))
            self._free = list(range(first, first + BLOCK))[::-1]
        return self._free.pop()
