"""What a message holds, for both ends: arrays under "arrays", a config under "config", as with Flower's strategies.

A compressed update is a record of one array, of a type of its own; so is each compressed array of a model. Who does not
know these types cannot take their bytes for numbers. Clients import this: it needs nothing of the server.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from secureafl import layout
from secureafl.engines import signing
from secureafl.types import NamedArrays

ARRAYS, CONFIG = "arrays", "config"
NONCE, VERSION, SIGNATURE = "secureafl-nonce", "server-round", "secureafl-signature"
COMPRESSED, BFLOAT16 = "secureafl.compressed", "secureafl.bfloat16"
"""Types of arrays: a whole update, and an array of a model."""


def to_arrays(model: Any) -> NamedArrays:
    """Named arrays from a Flower `ArrayRecord`, a PyTorch `state_dict` or a mapping of NumPy arrays."""
    if isinstance(model, ArrayRecord):
        return {name: _to_numpy(array) for name, array in model.items()}
    return layout.to_arrays(model)


def compressed_record(compressed: bytes) -> ArrayRecord:
    """A compressed update as it travels."""
    return ArrayRecord({COMPRESSED: Array("uint8", (len(compressed),), COMPRESSED, compressed)})


def bfloat16(array: npt.NDArray[Any]) -> Array:
    """A compressed array of a model as it travels."""
    return Array("bfloat16", array.shape, BFLOAT16, array.tobytes())


def record_digest(record: ArrayRecord) -> bytes:
    """What a signature covers of the arrays."""
    return signing.digest((name, array.dtype, tuple(array.shape), array.data) for name, array in record.items())


def _to_numpy(array: Array) -> npt.NDArray[Any]:
    if array.stype == BFLOAT16:
        return np.frombuffer(array.data, np.uint16).reshape(tuple(array.shape))
    return array.numpy()
