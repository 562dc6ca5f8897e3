"""Models and answers as Flower carries them.

A dispatch looks like Flower's own strategies make it: arrays under "arrays", a config under "config". An answer is
whatever a ClientApp returns: one `ArrayRecord`, the rest is ignored but for the signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MessageType, RecordDict

from secureafl.engines import answers, signing
from secureafl.engines.answers import AnswerReader
from secureafl.engines.config import EngineSettings
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.types import NamedArrays, Reason, Vector

ARRAYS, CONFIG = "arrays", "config"
NONCE, VERSION, SIGNATURE = "secureafl-nonce", "server-round", "secureafl-signature"


class Records:
    """Encodes assignments and decodes answers for one model layout."""

    def __init__(
        self,
        layout: Layout,
        settings: EngineSettings,
        train_config: Mapping[str, ConfigRecordValues] | None = None,
    ) -> None:
        self._layout = layout
        self._reader = AnswerReader(layout, settings)
        self._train_config = dict(train_config or {})

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
            return self._reader.read(
                assignment,
                sum(len(array.data) for array in record.values()),
                signature=lambda: _signature(answer),
                digest=lambda: record_digest(record),
                arrays=lambda: {name: array.numpy() for name, array in record.items()},
            )
        except Exception:  # a hostile client may raise anything from Flower's or NumPy's readers
            return Reason.MALFORMED


def _signature(answer: Message) -> object:
    """The one signature in an answer, or None."""
    found = [config[SIGNATURE] for config in answer.content.config_records.values() if SIGNATURE in config]
    return found[0] if len(found) == 1 else None


def record_digest(record: ArrayRecord) -> bytes:
    """What a signature covers of the arrays."""
    return signing.digest((name, array.dtype, tuple(array.shape), array.data) for name, array in record.items())


def to_arrays(model: Any) -> NamedArrays:
    """Named arrays from a Flower `ArrayRecord`, a PyTorch `state_dict` or a mapping of NumPy arrays."""
    if isinstance(model, ArrayRecord):
        return {name: array.numpy() for name, array in model.items()}
    return answers.to_arrays(model)
