"""Models and answers as Flower carries them.

A dispatch looks like Flower's own strategies make it: arrays under "arrays", a config under "config". An answer is
whatever a ClientApp returns: one `ArrayRecord`, the rest is ignored but for the signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MessageType, RecordDict

from secureafl.engines import signing
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.server.admission import ClientReturns, admit
from secureafl.types import NamedArrays, Reason, Vector

ARRAYS, CONFIG = "arrays", "config"
NONCE, VERSION, SIGNATURE = "secureafl-nonce", "server-round", "secureafl-signature"
MAX_BYTES_FACTOR = 4  # an answer may be wider than float32 (float64 is twice), not more


class Records:
    """Encodes assignments and decodes answers for one model layout."""

    def __init__(
        self,
        layout: Layout,
        client_returns: ClientReturns,
        train_config: Mapping[str, ConfigRecordValues] | None = None,
        keys: signing.PublicKeys | None = None,
    ) -> None:
        self._layout = layout
        self._client_returns: ClientReturns = client_returns
        self._train_config = dict(train_config or {})
        self._keys = keys
        self._max_bytes = MAX_BYTES_FACTOR * 4 * layout.dim + 4096 * len(layout.entries)

    def encode(self, assignment: Assignment, node_id: int, ttl: float) -> Message:
        """The dispatch for one node."""
        arrays = {name: Array(array) for name, array in self._layout.unflatten(assignment.params).items()}
        config = {**self._train_config, VERSION: assignment.version, NONCE: assignment.nonce}
        content = RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(config)})
        return Message(content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)

    def decode(self, answer: Message, assignment: Assignment) -> Vector | Reason:
        """The update in an answer, or why there is none. Whatever a client packed, this does not raise."""
        try:
            records = list(answer.content.array_records.values())
            if len(records) != 1:
                return Reason.MALFORMED
            record = records[0]
            if sum(len(array.data) for array in record.values()) > self._max_bytes:
                return Reason.TOO_LARGE
            if self._keys is not None and not self._is_signed(answer, record, assignment):
                return Reason.BAD_SIGNATURE
            arrays = {name: array.numpy() for name, array in record.items()}
        except Exception:  # a hostile client may raise anything from Flower's or NumPy's readers
            return Reason.MALFORMED
        return admit(arrays, self._layout, assignment.params, self._client_returns)

    def _is_signed(self, answer: Message, record: ArrayRecord, assignment: Assignment) -> bool:
        assert self._keys is not None
        key = self._keys.get(assignment.client)
        found = [config[SIGNATURE] for config in answer.content.config_records.values() if SIGNATURE in config]
        if key is None or len(found) != 1 or not isinstance(found[0], bytes):
            return False
        return signing.verify(key, found[0], assignment.nonce, assignment.version, record_digest(record))


def record_digest(record: ArrayRecord) -> bytes:
    """What a signature covers of the arrays."""
    return signing.digest((name, array.dtype, tuple(array.shape), array.data) for name, array in record.items())


def to_arrays(model: Any) -> NamedArrays:
    """Named arrays from a Flower `ArrayRecord`, a PyTorch `state_dict` or a mapping of NumPy arrays."""
    if isinstance(model, ArrayRecord):
        return {name: array.numpy() for name, array in model.items()}
    return {name: np.asarray(array) for name, array in dict(model).items()}
