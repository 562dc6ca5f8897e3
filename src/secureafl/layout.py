"""Named arrays <-> one flat float32 vector.

The order, shapes and types are fixed once, from the initial model; everything that arrives later must match.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from secureafl.errors import LayoutError
from secureafl.types import NamedArrays, Vector


@dataclass(frozen=True, slots=True)
class Entry:
    """One named array of the model: where it lies in the flat vector is decided by the order of entries."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model's named arrays lie in one flat vector.

    Integer entries (a BatchNorm step counter, say) travel as float32 and are rounded on the way back.
    """

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, arrays: NamedArrays) -> Layout:
        """The layout of these arrays, in their own order."""
        if not arrays:
            raise LayoutError("a model needs at least one array")
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu":
                raise LayoutError(f"array {name!r} has dtype {array.dtype}; only real numbers can be averaged")
        return cls(tuple(Entry(name, array.shape, array.dtype) for name, array in arrays.items()))

    @property
    def dim(self) -> int:
        """Length d of the flat vector."""
        return sum(entry.size for entry in self.entries)

    def flatten(self, arrays: NamedArrays) -> Vector:
        """The arrays as one new vector, whatever order the mapping has."""
        self._check(arrays)
        flat = np.empty(self.dim, np.float32)
        start = 0
        for entry in self.entries:
            with np.errstate(over="ignore"):  # a value beyond float32 becomes inf, which the server refuses by name
                flat[start : start + entry.size] = arrays[entry.name].reshape(-1)
            start += entry.size
        return flat

    def unflatten(self, vector: Vector) -> NamedArrays:
        """The vector as named arrays of the original shapes and types; never views of it."""
        if vector.shape != (self.dim,):
            raise LayoutError(f"vector has shape {vector.shape}; this model needs ({self.dim},)")
        arrays: NamedArrays = {}
        start = 0
        for entry in self.entries:
            part = vector[start : start + entry.size].reshape(entry.shape)
            arrays[entry.name] = (np.rint(part) if entry.dtype.kind in "iu" else part).astype(entry.dtype)
            start += entry.size
        return arrays

    def _check(self, arrays: NamedArrays) -> None:
        names = {entry.name for entry in self.entries}
        if missing := sorted(names - arrays.keys()):
            raise LayoutError(f"arrays missing: {', '.join(missing)}")
        if extra := sorted(arrays.keys() - names):
            raise LayoutError(f"arrays not in the model: {', '.join(extra)}")
        for entry in self.entries:
            array = arrays[entry.name]
            if array.shape != entry.shape:
                raise LayoutError(f"array {entry.name!r} has shape {array.shape}; the model has {entry.shape}")
            if array.dtype.kind not in "fiu":
                raise LayoutError(f"array {entry.name!r} has dtype {array.dtype}; only real numbers are taken")
