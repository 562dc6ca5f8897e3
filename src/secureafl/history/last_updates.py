"""The last update of each client, and a sketch of the model it was made for. One row per client, in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from secureafl import kernels
from secureafl.types import Array, ClientId, StateDict, Vector


@dataclass(slots=True, eq=False)
class Row:
    """What is kept of one client.

    delta        (d,) its update, as far as it counted
    square       |delta|^2
    sketch       of delta
    base_sketch  of the model that the update was made for
    """

    delta: Vector
    square: float
    sketch: Vector
    base_sketch: Vector


class LastUpdates:
    """Rows by client. An arrival reads and writes its sender's row alone."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._rows: dict[ClientId, Row] = {}

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

    @property
    def memory_bytes(self) -> int:
        """Bytes taken by the rows."""
        return sum(row.delta.nbytes + row.sketch.nbytes + row.base_sketch.nbytes for row in self._rows.values())

    def read(self, client: ClientId) -> Row | None:
        """What is kept of this client. It may be changed in place."""
        return self._rows.get(client)

    def write(self, client: ClientId, row: Row) -> None:
        """Keep this of the client."""
        self._rows[client] = row

    def move_to_end(self, client: ClientId) -> None:
        """Let the client be the last in order."""
        self._rows[client] = self._rows.pop(client)

    def drop(self, client: ClientId) -> None:
        """Keep nothing of the client."""
        self._rows.pop(client, None)

    def last_delta(self, client: ClientId) -> Vector:
        """The client's last update, as far as it counted."""
        return self._rows[client].delta

    def state_dict(self) -> StateDict:
        rows = list(self._rows.values())
        width = len(rows[0].base_sketch) if rows else 0
        return {
            "clients": np.array(self.clients, np.int64),
            "rows": np.array([row.delta for row in rows], np.float32).reshape(len(rows), self.dim),
            "squares": np.array([row.square for row in rows], np.float64),
            "sketches": np.array([row.sketch for row in rows], np.float32).reshape(len(rows), width),
            "base_sketches": np.array([row.base_sketch for row in rows], np.float32).reshape(len(rows), width),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients, squares = np.asarray(state["clients"]).tolist(), np.asarray(state["squares"], np.float64).tolist()
        arrays = (np.asarray(state[name], np.float32) for name in ("rows", "sketches", "base_sketches"))
        self._rows = {
            ClientId(client): Row(row.copy(), square, sketch.copy(), base_sketch.copy())
            for client, square, row, sketch, base_sketch in zip(clients, squares, *arrays, strict=True)
        }


def sketch_distance(a: Vector, b: Vector) -> float:
    """About the distance between two models, from their sketches; exactly 0 for the same model."""
    gap = a - b
    return math.sqrt(kernels.dot(gap, gap))
