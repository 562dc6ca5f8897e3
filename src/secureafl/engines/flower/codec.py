"""Models and updates as Flower carries them.

A dispatch looks like Flower's own strategies make it: arrays under "arrays", a config under "config". An update is
whatever a ClientApp returns: one `ArrayRecord`, the rest is ignored but for the signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MessageType, RecordDict

from secureafl.engines import signing, updates
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.updates import UpdateReader
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.types import NamedArrays, Reason, Vector

ARRAYS, CONFIG = "arrays", "config"
NONCE, VERSION, SIGNATURE = "secureafl-nonce", "server-round", "secureafl-signature"


class Records:
    """Encodes assignments and decodes replies for one model layout."""

    def __init__(
        self,
        layout: Layout,
        settings: EngineSettings,
        train_config: Mapping[str, ConfigRecordValues] | None = None,
    ) -> None:
        self._layout = layout
        self._reader = UpdateReader(layout, settings)
        self._train_config = dict(train_config or {})

    def encode(self, assignment: Assignment, node_id: int, ttl: float) -> Message:
        """The dispatch for one node."""
        arrays = {name: Array(array) for name, array in self._layout.unflatten(assignment.params).items()}
        config = {**self._train_config, VERSION: assignment.version, NONCE: assignment.nonce}
        content = RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(config)})
        return Message(content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)

    def decode(self, reply: Message, assignment: Assignment) -> Vector | Reason:
        """The update in a reply, or why there is none. Whatever a client packed, this does not raise."""
        try:
            records = list(reply.content.array_records.values())
            if len(records) != 1:
                return Reason.MALFORMED
            record = records[0]
            return self._reader.read(
                assignment,
                sum(len(array.data) for array in record.values()),
                signature=lambda: _signature(reply),
                digest=lambda: record_digest(record),
                arrays=lambda: {name: array.numpy() for name, array in record.items()},
            )
        except Exception:  # a hostile client may raise anything from Flower's or NumPy's readers
            return Reason.MALFORMED


def _signature(reply: Message) -> object:
    """The one signature in an update, or None."""
    found = [config[SIGNATURE] for config in reply.content.config_records.values() if SIGNATURE in config]
    return found[0] if len(found) == 1 else None


def record_digest(record: ArrayRecord) -> bytes:
    """What a signature covers of the arrays."""
    return signing.digest((name, array.dtype, tuple(array.shape), array.data) for name, array in record.items())


def to_arrays(model: Any) -> NamedArrays:
    """Named arrays from a Flower `ArrayRecord`, a PyTorch `state_dict` or a mapping of NumPy arrays."""
    if isinstance(model, ArrayRecord):
        return {name: array.numpy() for name, array in model.items()}
    return updates.to_arrays(model)
