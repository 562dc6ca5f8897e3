"""A snapshot that holds what changed since the one before, and where the rest is.

Every array of a state is cut into pieces: of PIECE_BYTES, or of one row where an array knows its rows. A piece has a
tag, equal for equal bytes. An increment holds the pieces whose tags the snapshot before it did not have, and for every
piece in which file it is and where. The files it needs, a full snapshot first, are its *chain*: it names each by
version and SHA-256, so that none can be exchanged for another.

In a file of an increment: `NAME` the new pieces of array NAME, one after the other; `NAME#from` (pieces, 2) for each
piece the file, by its place in the chain, and the place in that file's array; `#increment` the rest, as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secureafl.types import Array, ArrayInParts, ArrayInRows, Vector

PIECE_BYTES = 1 << 16
HEADER = "#increment"
FROM = "#from"

Link: TypeAlias = tuple[int, str]
"""A snapshot: its version and its SHA-256."""
Found: TypeAlias = dict[Hashable, tuple[int, int]]
"""Tag of a piece -> which file of the chain has it, and where in its array."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The files that a next increment can build on, and what they hold of the newest state."""

    links: tuple[Link, ...]
    found: Mapping[str, Found]


class Cut:
    """A state in pieces, and which of them are new."""

    def __init__(self, state: Mapping[str, Array | ArrayInRows], before: Chain | None = None) -> None:
        self._state = state
        self._links = () if before is None else before.links
        self._found: dict[str, Found] = {}
        self._sources: dict[str, npt.NDArray[np.int64]] = {}
        self._new: dict[str, list[int]] = {}
        for name, array in state.items():
            self._cut(name, array, {} if before is None else before.found.get(name, {}))

    def _cut(self, name: str, array: Array | ArrayInRows, before: Found) -> None:
        found: Found = {}
        sources: list[tuple[int, int]] = []
        new: list[int] = []
        for number, tag in enumerate(_tags(array)):
            source = found.get(tag) or before.get(tag) if self._links else None  # a full snapshot has every piece
            if source is None:
                source = len(self._links), len(new)
                new.append(number)
            found[tag] = source
            sources.append(source)
        self._found[name], self._new[name] = found, new
        self._sources[name] = np.array(sources, np.int64).reshape(-1, 2)

    @property
    def new_bytes(self) -> int:
        """Bytes of pieces that the chain does not have."""
        return sum(_Pieces(self._state[name], new).nbytes for name, new in self._new.items())

    def chain(self, link: Link) -> Chain:
        """What the next increment can build on, once this one is written as `link`."""
        return Chain((*self._links, link), self._found)

    def increment(self) -> dict[str, Array | ArrayInParts]:
        """The arrays of the file."""
        arrays: dict[str, Array | ArrayInParts] = {}
        described = {}
        for name, array in self._state.items():
            by_row = not isinstance(array, np.ndarray)
            described[name] = [array.dtype.str, list(array.shape), _piece_bytes(array), by_row]
            arrays[name] = _Pieces(array, self._new[name])
            arrays[name + FROM] = self._sources[name]
        header = json.dumps({"chain": self._links, "arrays": described}).encode()
        arrays[HEADER] = np.frombuffer(header, np.uint8)
        return arrays


class _Pieces:
    """Some pieces of an array, as bytes in a row, read when they are written."""

    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, array: Array | ArrayInRows, numbers: Sequence[int]) -> None:
        self._array = array
        self._numbers = numbers
        size = _piece_bytes(array)
        self.nbytes = sum(min(size, array.nbytes - number * size) for number in numbers)
        self.shape = (self.nbytes,)

    def parts(self) -> Iterator[memoryview]:
        return (_piece(self._array, number) for number in self._numbers)


def _piece_bytes(array: Array | ArrayInRows) -> int:
    if isinstance(array, np.ndarray):
        return PIECE_BYTES
    return array.nbytes // max(1, array.shape[0])


def _tags(array: Array | ArrayInRows) -> Iterator[Hashable]:
    if not isinstance(array, np.ndarray):
        return iter(array.tags)
    count = -(-array.nbytes // PIECE_BYTES)
    return (hashlib.blake2b(_piece(array, number), digest_size=16).digest() for number in range(count))


def _piece(array: Array | ArrayInRows, number: int) -> memoryview:
    if not isinstance(array, np.ndarray):
        return as_bytes(array[number])
    return as_bytes(array)[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]


def as_bytes(array: Array) -> memoryview:
    """The array's bytes, in order."""
    if not array.nbytes:
        return memoryview(b"")
    return np.ascontiguousarray(array).reshape(-1).data.cast("B")


class ChainedState(Mapping[str, Array]):
    """The state that an increment stands for, from the files of its chain: each array when it is asked for.

    raw   for each file, in order: its arrays by name, as bytes
    """

    def __init__(self, header: Mapping[str, Any], raw: Sequence[Mapping[str, npt.NDArray[np.uint8]]]) -> None:
        self._arrays: dict[str, Any] = header["arrays"]
        self._raw = raw

    def __getitem__(self, name: str) -> Array:
        dtype, shape, piece_bytes, by_row = self._arrays[name]
        sources = self._raw[-1][name + FROM].view(np.int64).reshape(-1, 2)
        rows = ChainedRows(name, np.dtype(dtype), tuple(shape), piece_bytes, sources, self._raw)
        return rows if by_row else np.asarray(rows)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclass(frozen=True, slots=True, eq=False)
class ChainedRows:
    """An array in pieces that lie in several files. A row of it can be read without the others."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    piece_bytes: int
    sources: npt.NDArray[np.int64]
    raw: Sequence[Mapping[str, npt.NDArray[np.uint8]]]

    def __getitem__(self, number: int) -> Array:
        row: Vector = np.frombuffer(self._piece(number), self.dtype)
        return row

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        whole = np.empty(int(np.prod(self.shape)) * self.dtype.itemsize, np.uint8)
        for number in range(len(self.sources)):
            piece = self._piece(number)
            start = number * self.piece_bytes
            whole[start : start + len(piece)] = piece
        return whole.view(self.dtype).reshape(self.shape).astype(dtype or self.dtype, copy=False)

    def _piece(self, number: int) -> npt.NDArray[np.uint8]:
        link, place = self.sources[number].tolist()
        start = place * self.piece_bytes
        return np.array(self.raw[link][self.name][start : start + self.piece_bytes])
