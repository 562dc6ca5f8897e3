"""The last update of each client, and a sketch of the model it was made for. One row per client, wherever rows lie.

Small things of a row are in memory; its vector is in a `RowStore`, in 32 bits or in 16. In 16 bits, what counts is what
is kept: `fit` rounds an update before it is added to any sum, so that exactly the same can be taken away later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from secureafl import kernels
from secureafl.errors import StateError
from secureafl.history.row_by_row import RowByRow
from secureafl.history.stores import MemoryRows, RowStore
from secureafl.kernels.halves import HalfType, from_half, mixed, to_half
from secureafl.types import Array, ClientId, StateDict, StateView, Vector

RowType: TypeAlias = Literal["float32"] | HalfType

KEPT_AS: Mapping[RowType, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),  # NumPy has no such type: its bits
}
OBJECT_BYTES = 1100
"""What a row takes beside its vector and its sketches, about: Python's objects."""


@dataclass(slots=True, eq=False)
class Row:
    """What is kept of one client in memory.

    place        where its last update is, as far as it counted
    scale        of that, in float16
    square       |delta|^2
    sketch       of delta
    base_sketch  of the model that the update was made for
    written      which write this is of, counted over all clients
    """

    place: int
    scale: float
    square: float
    sketch: Vector
    base_sketch: Vector
    written: int = 0


class Fitted(NamedTuple):
    """An update as it will be kept: of_delta delta + of_row row.

    kept, scale  what is stored; None if that is the row's own array once it has these values
    """

    delta: Vector
    of_delta: float
    of_row: float
    kept: Array | None
    scale: float


class LastUpdates:
    """Rows by client. An arrival reads and writes its sender's row alone."""

    def __init__(self, dim: int, kind: RowType = "float32", store: RowStore | None = None) -> None:
        self.dim = dim
        self.kind = kind
        self.store = MemoryRows() if store is None else store
        self._rows: dict[ClientId, Row] = {}
        self._free: list[int] = []
        self._num_writes = 0
        self._last_read: tuple[ClientId, Vector] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, client: ClientId) -> bool:
        return client in self._rows

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._rows)

    @property
    def clients(self) -> list[ClientId]:
        """Clients that have a row, in the order in which they came, or were last moved."""
        return list(self._rows)

    def bytes_per_row(self, sketch_width: int) -> tuple[int, int]:
        """What a row takes where rows lie, and in memory beside it."""
        return self.dim * KEPT_AS[self.kind].itemsize, 2 * 4 * sketch_width + OBJECT_BYTES

    def read(self, client: ClientId) -> Row | None:
        """The small things of this client's row. They may be changed in place."""
        return self._rows.get(client)

    def vector(self, client: ClientId) -> Vector:
        """(d,) the client's last update, as far as it counted. It may be changed in place, and is then written."""
        if self._last_read is not None and self._last_read[0] == client:
            return self._last_read[1]
        row = self._rows[client]
        found = self._decoded(self.store.read(row.place), row.scale)
        self._last_read = client, found
        return found

    def last_delta(self, client: ClientId) -> Vector:
        """(d,) the same, for those who look in from outside or at a client that sends nothing now."""
        row = self._rows[client]
        return self._decoded(self.store.read(row.place), row.scale)

    def add(self, client: ClientId, sketch: Vector, base_sketch: Vector) -> Row:
        """A new row, of nothing but zeros until it is written."""
        place = self._free.pop() if self._free else len(self._rows)
        self._rows[client] = row = Row(place, 1.0, 0.0, sketch, base_sketch)
        self._last_read = client, np.zeros(self.dim, np.float32)
        return row

    def fit(self, client: ClientId, delta: Vector, of_delta: float, of_row: float) -> Fitted:
        """What of_delta delta + of_row row will be once it is kept."""
        if self.kind == "float32":
            return Fitted(delta, of_delta, of_row, None, 1.0)
        bits, scale = to_half(mixed(delta, of_delta, self.vector(client), of_row), self.kind)
        return Fitted(from_half(bits, scale, self.kind), 1.0, 0.0, bits.view(KEPT_AS[self.kind]), scale)

    def write(self, client: ClientId, vector: Vector, fitted: Fitted) -> None:
        """Keep this vector, which has the fitted values now."""
        row = self._rows[client]
        row.scale, row.written = fitted.scale, self._next_write()
        self.store.write(row.place, vector if fitted.kept is None else fitted.kept)
        self._last_read = None

    def move_to_end(self, client: ClientId) -> None:
        """Let the client be the last in order."""
        self._rows[client] = self._rows.pop(client)

    def drop(self, client: ClientId) -> None:
        """Keep nothing of the client."""
        row = self._rows.pop(client, None)
        if row is not None:
            self._last_read = None
            self._free.append(row.place)
            self.store.drop(row.place)

    def _next_write(self) -> int:
        self._num_writes += 1
        return self._num_writes

    def state_dict(self) -> StateDict:
        return {name: array.whole() if isinstance(array, RowByRow) else array for name, array in self._state().items()}

    def state_view(self) -> StateView:
        """The same, with rows that are read when they are written: good until the next step."""
        return {**self._state()}

    def _state(self) -> dict[str, Array | RowByRow]:
        rows = list(self._rows.values())
        width, single = len(rows[0].base_sketch) if rows else 0, np.dtype(np.float32)
        tags = [row.written for row in rows]
        return {
            "clients": np.array(self.clients, np.int64),
            "squares": np.array([row.square for row in rows], np.float64),
            "sketches": RowByRow(tags, width, single, lambda number: rows[number].sketch),
            "base_sketches": RowByRow(tags, width, single, lambda number: rows[number].base_sketch),
            "rows": RowByRow(tags, self.dim, KEPT_AS[self.kind], lambda number: self.store.read(rows[number].place)),
            **({"scales": np.array([row.scale for row in rows])} if self.kind == "float16" else {}),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients, squares = np.asarray(state["clients"]).tolist(), np.asarray(state["squares"], np.float64).tolist()
        sketches, base_sketches = (np.asarray(state[name], np.float32) for name in ("sketches", "base_sketches"))
        scales = np.asarray(state["scales"]).tolist() if self.kind == "float16" else [1.0] * len(clients)
        kept = state["rows"]
        if kept.dtype != KEPT_AS[self.kind] or kept.shape != (len(clients), self.dim):
            raise StateError(
                f"saved rows are {kept.shape} of {kept.dtype}; this run has rows of {self.dim} {self.kind}"
            )
        self.store.clear()
        self._rows, self._free, self._last_read = {}, [], None
        for place, client in enumerate(clients):
            sketch, base_sketch = sketches[place].copy(), base_sketches[place].copy()
            self.store.write(place, np.array(kept[place]))
            written = self._next_write()
            self._rows[ClientId(client)] = Row(place, scales[place], squares[place], sketch, base_sketch, written)

    def _decoded(self, kept: Array, scale: float) -> Vector:
        if self.kind == "float32":
            return np.asarray(kept, np.float32)
        return from_half(kept, scale, self.kind)


def sketch_distance(a: Vector, b: Vector) -> float:
    """About the distance between two models, from their sketches; exactly 0 for the same model."""
    gap = a - b
    return math.sqrt(kernels.dot(gap, gap))
