"""Models and updates as NVFlare carries them: a dictionary with the arrays as safetensors bytes, or a compressed update
in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from safetensors.numpy import load, save

from secureafl.engines import signing
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.offer import Offer
from secureafl.engines.updates import UpdateReader
from secureafl.layout import Layout
from secureafl.privacy import read_report
from secureafl.server import Assignment
from secureafl.types import NamedArrays, Reason
from secureafl.wire import Reply, compress_model

ARRAYS, CONFIG, NONCE, VERSION, SIGNATURE = "arrays", "config", "nonce", "version", "signature"
COMPRESSED, OFFER, METRICS = "compressed", "offer", "metrics"

Message: TypeAlias = dict[str, Any]


class Messages:
    """Encodes assignments and decodes replies for one model layout."""

    def __init__(self, layout: Layout, settings: EngineSettings, train_config: Mapping[str, Any] | None = None) -> None:
        self._layout = layout
        self._reader = UpdateReader(layout, settings)
        self._train_config = dict(train_config or {})
        self._offer = Offer.of(layout, settings.wire, settings.client_returns)

    def encode(self, assignment: Assignment, *, compressed: bool = False) -> Message:
        """The dispatch to one client; `compressed` if it has shown that it can read that."""
        model = self._layout.unflatten(assignment.params, copy=False)
        return {
            ARRAYS: pack(compress_model(model) if compressed else model),
            CONFIG: self._train_config,
            NONCE: assignment.nonce,
            VERSION: assignment.version,
            **({} if self._offer is None else {OFFER: self._offer.config()}),
        }

    def decode(self, reply: object, assignment: Assignment) -> Reply:
        """The update in a reply, or why there is none. Whatever a client packed, this does not raise."""
        if not isinstance(reply, dict) or (ARRAYS in reply) == (COMPRESSED in reply):
            return Reason.MALFORMED
        kind = ARRAYS if ARRAYS in reply else COMPRESSED
        if not isinstance(data := reply[kind], bytes):
            return Reason.MALFORMED
        try:
            return self._reader.read(
                assignment,
                len(data),
                signature=lambda: reply.get(SIGNATURE),
                digest=lambda: data_digest(data, kind),
                arrays=lambda: load(data),
                compressed=data if kind == COMPRESSED else None,
            )
        except Exception:  # a hostile client may raise anything from the readers
            return Reason.MALFORMED


def reported(reply: object) -> dict[str, float]:
    """What a client says of itself, as far as it is of use here; empty if it says nothing."""
    metrics = reply.get(METRICS) if isinstance(reply, dict) else None
    return read_report(metrics) if isinstance(metrics, dict) else {}


def pack(arrays: NamedArrays) -> bytes:
    """Named arrays as safetensors."""
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def data_digest(data: bytes, kind: str = ARRAYS) -> bytes:
    """What a signature covers of an update."""
    return signing.digest([(kind, "safetensors" if kind == ARRAYS else kind, (len(data),), data)])
