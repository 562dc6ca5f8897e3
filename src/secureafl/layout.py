"""Named arrays <-> one flat float32 vector, and integer arrays carried beside it.

The order, shapes and types are fixed once, from the initial model; everything that arrives later must match.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from secureafl.errors import LayoutError
from secureafl.types import NamedArrays, Vector

JUDGED_KINDS = "f"
CARRIED_KINDS = "iub"


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """One named array of the flat vector: where it lies is decided by the order of entries."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How a model's named arrays lie in one flat vector, and which of them are carried beside it.

    names    all arrays of the model, in its own order
    entries  the floating-point arrays, in the order of the vector: clients train them, the defense judges them
    carried  the integer and boolean arrays (BatchNorm's `num_batches_tracked`, a mask) as the first model had them

    Every model that is handed out, evaluated or saved holds the carried arrays unchanged. An update may hold them too;
    their values are not used. A mean or a median of counters or masks says nothing, and no defense can judge whether
    the newest value that a client sent is true. PyTorch reads `num_batches_tracked` only where `momentum=None`.
    """

    names: tuple[str, ...]
    entries: tuple[ArrayEntry, ...]
    carried: NamedArrays

    @classmethod
    def of(cls, arrays: NamedArrays) -> Layout:
        """The layout of these arrays, in their own order."""
        if not arrays:
            raise LayoutError("a model needs at least one array")
        for name, array in arrays.items():
            if array.dtype.kind not in JUDGED_KINDS + CARRIED_KINDS:
                raise LayoutError(f"array {name!r} has dtype {array.dtype}; a model's arrays hold real numbers")
        judged = {name: array for name, array in arrays.items() if array.dtype.kind in JUDGED_KINDS}
        if not judged:
            raise LayoutError(f"a model needs at least one floating-point array to train; {_listed(arrays)}")
        return cls(
            names=tuple(arrays),
            entries=tuple(ArrayEntry(name, array.shape, array.dtype) for name, array in judged.items()),
            carried={name: array.copy(order="C") for name, array in arrays.items() if name not in judged},
        )

    @property
    def dim(self) -> int:
        """Length d of the flat vector."""
        return sum(entry.size for entry in self.entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array, judged or carried."""
        judged = {entry.name: entry.shape for entry in self.entries}
        return judged | {name: array.shape for name, array in self.carried.items()}

    def flatten(self, arrays: NamedArrays) -> Vector:
        """The floating-point arrays as one new vector, whatever order the mapping has; carried ones may be absent."""
        self._check(arrays)
        flat = np.empty(self.dim, np.float32)
        start = 0
        for entry in self.entries:
            with np.errstate(over="ignore"):  # a value beyond float32 becomes inf, which the server refuses by name
                flat[start : start + entry.size] = arrays[entry.name].reshape(-1)
            start += entry.size
        return flat

    def unflatten(self, vector: Vector, *, copy: bool = True) -> NamedArrays:
        """The whole model, carried arrays included, in the original order, shapes and types.

        Without `copy` the arrays may be views of the vector, for those who only read them.
        """
        if vector.shape != (self.dim,):
            raise LayoutError(f"vector has shape {vector.shape}; this model needs ({self.dim},)")
        arrays = {name: array.copy() if copy else array for name, array in self.carried.items()}
        start = 0
        for entry in self.entries:
            arrays[entry.name] = vector[start : start + entry.size].reshape(entry.shape).astype(entry.dtype, copy=copy)
            start += entry.size
        return {name: arrays[name] for name in self.names}

    def describe(self) -> list[list[object]]:
        """One row of JSON values per array, in the model's order: name, dtype, shape, role and SHA-256.

        The role is "judged" or "carried". The SHA-256 of a carried array's values tells a resumed run whether it
        carries the same; a judged array has None there, because the hash of the flat vector covers it.
        """
        rows: dict[str, list[object]] = {
            name: [name, str(array.dtype), list(array.shape), "carried", hashlib.sha256(array.tobytes()).hexdigest()]
            for name, array in self.carried.items()
        }
        for entry in self.entries:
            rows[entry.name] = [entry.name, str(entry.dtype), list(entry.shape), "judged", None]
        return [rows[name] for name in self.names]

    def _check(self, arrays: NamedArrays) -> None:
        if missing := sorted({entry.name for entry in self.entries} - arrays.keys()):
            raise LayoutError(f"arrays missing: {', '.join(missing)}")
        if extra := sorted(arrays.keys() - set(self.names)):
            raise LayoutError(f"arrays not in the model: {', '.join(extra)}")
        for name, shape in self.shapes.items():
            if name in arrays and arrays[name].shape != shape:
                raise LayoutError(f"array {name!r} has shape {arrays[name].shape}; the model has {shape}")
        for entry in self.entries:
            if (dtype := arrays[entry.name].dtype).kind not in "fiu":
                raise LayoutError(f"array {entry.name!r} has dtype {dtype}; only real numbers are taken")


def to_arrays(model: Any) -> NamedArrays:
    """Named arrays from a PyTorch `state_dict` or a mapping of NumPy arrays."""
    return {name: np.asarray(array) for name, array in dict(model).items()}


def _listed(arrays: NamedArrays) -> str:
    """Which types a model has instead, for an error."""
    return "it has " + ", ".join(f"{name!r} ({array.dtype})" for name, array in arrays.items())
