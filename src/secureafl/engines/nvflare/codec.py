"""Models and updates as NVFlare carries them: a dictionary with the arrays as safetensors bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from safetensors.numpy import load, save

from secureafl.engines import signing
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.updates import UpdateReader
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.types import NamedArrays, Reason, Vector

ARRAYS, CONFIG, NONCE, VERSION, SIGNATURE = "arrays", "config", "nonce", "version", "signature"

Message: TypeAlias = dict[str, Any]


class Messages:
    """Encodes assignments and decodes replies for one model layout."""

    def __init__(self, layout: Layout, settings: EngineSettings, train_config: Mapping[str, Any] | None = None) -> None:
        self._layout = layout
        self._reader = UpdateReader(layout, settings)
        self._train_config = dict(train_config or {})

    def encode(self, assignment: Assignment) -> Message:
        """The dispatch to one client."""
        return {
            ARRAYS: pack(self._layout.unflatten(assignment.params)),
            CONFIG: self._train_config,
            NONCE: assignment.nonce,
            VERSION: assignment.version,
        }

    def decode(self, reply: object, assignment: Assignment) -> Vector | Reason:
        """The update in a reply, or why there is none. Whatever a client packed, this does not raise."""
        if not isinstance(reply, dict) or not isinstance(data := reply.get(ARRAYS), bytes):
            return Reason.MALFORMED
        try:
            return self._reader.read(
                assignment,
                len(data),
                signature=lambda: reply.get(SIGNATURE),
                digest=lambda: data_digest(data),
                arrays=lambda: load(data),
            )
        except Exception:  # a hostile client may raise anything from the readers
            return Reason.MALFORMED


def pack(arrays: NamedArrays) -> bytes:
    """Named arrays as safetensors."""
    return save({name: array.copy(order="C") for name, array in arrays.items()})


def data_digest(data: bytes) -> bytes:
    """What a signature covers of an update."""
    return signing.digest([(ARRAYS, "safetensors", (len(data),), data)])
