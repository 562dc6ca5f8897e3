"""The rows of all clients in memory, block by block.

Shapes: d = parameters, r = rows per client, C = clients of a page. A page is an array (blocks, C, r, BLOCK): one block
of coordinates of many clients lies together. New clients get new pages; nothing is copied when there are more.

Row BASE is a model, the others are differences of models or updates. In half precision each row has a scale, models
are kept as their difference from a common `origin`, and the two rows of a client's reference (g, w), from which new
pairs are made, are kept in float32 beside them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from secureafl.errors import StateError
from secureafl.kernels import BLOCK, Chunks
from secureafl.types import Array, StateDict, Vector

Precision = Literal["float32", "float16"]

DELTA, BASE, PAIRS = 0, 1, 2
PAGE_BYTES = 1 << 28  # pages of large models hold fewer clients
MAX_PAGE_CLIENTS = 16
ALIGNMENT = 4096
HALF_RANGE = 2.0**14  # a row's largest value after scaling: far from overflow, so that small ones keep their digits


class Pages:
    """Rows by (slot, row). Slots are given in order and never taken back.

    path        directory for memory-mapped pages, so that history may be larger than memory; None for plain memory
    threads     how many threads a pass over the rows may use; None for all
    page_bytes  size of a page, if that holds at least one client; small ones can be released client by client
    """

    def __init__(
        self,
        dim: int,
        num_rows: int,
        precision: Precision = "float32",
        *,
        path: Path | None = None,
        threads: int | None = None,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.dim = dim
        self.num_rows = num_rows
        self.precision = precision
        self._path = path
        self._threads = threads or 0
        self._type = np.dtype(precision)
        self._num_blocks = -(-dim // BLOCK)
        self._page_clients = page_clients(dim, num_rows, precision, page_bytes)
        self.clear()

    def __len__(self) -> int:
        return self._num_slots

    def clear(self) -> None:
        """Forget everything."""
        self._num_slots = 0
        self._pages: list[npt.NDArray[np.floating]] = []
        self._references: list[Vector] = []
        self._at = np.empty(0, np.int64)
        self._scales = np.empty((0, self.num_rows), np.float32)
        self._origin = np.zeros(self.dim if self.precision == "float16" else 0, np.float32)

    def add(self) -> int:
        """A new slot, its rows zero."""
        slot = self._num_slots
        if slot == len(self._at):
            self._new_page()
        self._num_slots += 1
        return slot

    @property
    def chunks(self) -> Chunks:
        """All rows, as the kernels take them. Valid until the next `add`."""
        n, size = self._num_slots, self.num_rows * BLOCK * self._type.itemsize
        kind = np.float32(0) if self.precision == "float32" else np.uint16(0)
        return Chunks(
            self._at[:n], self._page_clients * size, size, kind, self._scales[:n], self._origin, self._threads
        )

    def only(self, slot: int) -> Chunks:
        """The rows of one client alone."""
        chunks = self.chunks
        return chunks._replace(at=chunks.at[slot : slot + 1], scales=chunks.scales[slot : slot + 1])

    def reference(self, slot: int, row: int) -> Vector:
        """The client's last update (DELTA) or its base model (BASE), as they were written."""
        if self.precision == "float16":
            return np.asarray(self._references[slot // self._page_clients][slot % self._page_clients, row])
        return np.asarray(self._stored(slot, row), np.float32)

    def write(self, slot: int, row: int, vector: Vector) -> None:
        if self.precision == "float32":
            self._store(slot, row, vector)
            return
        if row in (DELTA, BASE):
            self._references[slot // self._page_clients][slot % self._page_clients, row] = vector
        self._encode(slot, row, vector - self._origin if row == BASE else vector)

    def release(self, slot: int) -> None:
        """Let go of the memory of this client's page, if it is mapped: it is read from its file when it is needed."""
        place = slot // self._page_clients
        for array in [self._pages[place], *self._references[place : place + 1]]:
            if isinstance(array.base, mmap.mmap):
                array.base.madvise(mmap.MADV_DONTNEED)

    def rebase(self, origin: Vector) -> None:
        """Keep models as differences from `origin` from now on. Nothing to do in float32."""
        if self.precision == "float16":
            self._origin = origin.copy()
            for slot in range(self._num_slots):
                self._encode(slot, BASE, self.reference(slot, BASE) - origin)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all pages, also of slots not yet given."""
        return sum(page.nbytes for page in [*self._pages, *self._references]) + self._origin.nbytes

    def state_dict(self) -> StateDict:
        n = self._num_slots
        rows = np.empty((n, self.num_rows, self.dim), self._type)
        for slot in range(n):
            for row in range(self.num_rows):
                rows[slot, row] = self._stored(slot, row)
        if self.precision == "float32":
            return {"rows": rows}
        references = [self.reference(slot, row) for slot in range(n) for row in (DELTA, BASE)]
        return {
            "rows": rows,
            "scales": self._scales[:n].copy(),
            "origin": self._origin.copy(),
            "references": np.array(references, np.float32).reshape(n, 2, self.dim),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        rows = np.asarray(state["rows"])
        if rows.shape[1:] != (self.num_rows, self.dim) or rows.dtype != self._type:
            raise StateError(
                f"saved history has rows {rows.shape[1:]} of {rows.dtype}; "
                f"this one needs {(self.num_rows, self.dim)} of {self._type}"
            )
        self.clear()
        for saved in rows:
            slot = self.add()
            for row, values in enumerate(saved):
                self._store(slot, row, values)
        if self.precision == "float16":
            self._scales[: len(rows)] = state["scales"]
            self._origin = np.array(state["origin"], np.float32)
            for slot, pair in enumerate(np.asarray(state["references"], np.float32)):
                self._references[slot // self._page_clients][slot % self._page_clients] = pair

    def _encode(self, slot: int, row: int, vector: Vector) -> None:
        scale = np.float32(max(vector.max(initial=0.0), -vector.min(initial=0.0)) / HALF_RANGE)
        scale = scale if scale > np.finfo(np.float32).tiny else np.float32(1)
        self._scales[slot, row] = scale
        self._store(slot, row, (vector / scale).astype(np.float16))

    def _store(self, slot: int, row: int, values: npt.NDArray[np.floating]) -> None:
        place = self._pages[slot // self._page_clients][:, slot % self._page_clients, row]
        whole = self.dim // BLOCK
        place[:whole] = values[: whole * BLOCK].reshape(whole, BLOCK)
        place[whole:, : self.dim % BLOCK] = values[whole * BLOCK :]

    def _stored(self, slot: int, row: int) -> npt.NDArray[np.floating]:
        place = self._pages[slot // self._page_clients][:, slot % self._page_clients, row]
        return place.reshape(-1)[: self.dim]

    def _new_page(self) -> None:
        first, count = self._num_slots, self._page_clients
        page = self._zeros("rows", (self._num_blocks, count, self.num_rows, BLOCK), self._type)
        self._pages.append(page)
        size = self.num_rows * BLOCK * self._type.itemsize
        self._at = np.concatenate([self._at, page.ctypes.data + size * np.arange(count)])
        self._scales = np.concatenate([self._scales, np.ones((count, self.num_rows), np.float32)])
        if self.precision == "float16":
            self._references.append(self._zeros("references", (count, 2, self.dim), np.dtype(np.float32)))
        assert len(self._at) == first + count

    def _zeros(self, name: str, shape: tuple[int, ...], kind: np.dtype[np.floating]) -> npt.NDArray[np.floating]:
        """An array on a page boundary, so that no vector of it crosses a cache line."""
        size = int(np.prod(shape)) * kind.itemsize
        if self._path is not None:
            path = self._path / f"{name}-{len(self._pages):06d}.bin"
            with path.open("wb") as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # a full disk is an error here; later it would kill the process
                    os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(path, kind, "r+", shape=shape)
        memory = np.zeros(size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + size].view(kind).reshape(shape)


def page_clients(dim: int, num_rows: int, precision: Precision, page_bytes: int = PAGE_BYTES) -> int:
    """How many clients share a page."""
    each = -(-dim // BLOCK) * BLOCK * num_rows * np.dtype(precision).itemsize
    return max(1, min(MAX_PAGE_CLIENTS, page_bytes // max(1, each)))


def expected_bytes(num_clients: int, dim: int, memory: int = 3, precision: Precision = "float32") -> int:
    """Bytes that the history of so many clients takes: `memory` is the number of pairs kept per client.

    Per client and coordinate: 8 + 8 memory in float32; 12 + 4 memory in half precision, of which 4 + 4 memory are read
    at each step.
    """
    num_rows, blocks = 2 + 2 * memory, -(-dim // BLOCK)
    count = page_clients(dim, num_rows, precision)
    slots = -(-num_clients // count) * count
    hot = slots * blocks * BLOCK * num_rows * np.dtype(precision).itemsize
    return hot if precision == "float32" else hot + slots * 8 * dim + 4 * dim
