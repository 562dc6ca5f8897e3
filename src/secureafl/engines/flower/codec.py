"""Assignments and updates as Flower carries them: the server's end.

An update is whatever a ClientApp returns: one `ArrayRecord`; the rest is ignored, but for the signature and for what a
client says of its privacy.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MessageType, RecordDict

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.flower.contents import (
    ARRAYS,
    COMPRESSED,
    CONFIG,
    NONCE,
    SIGNATURE,
    VERSION,
    bfloat16,
    record_digest,
)
from secureafl.engines.offer import Offer
from secureafl.engines.updates import UpdateReader
from secureafl.layout import Layout
from secureafl.privacy import read_report
from secureafl.server import Assignment
from secureafl.types import Reason
from secureafl.wire import Reply, compress_model


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
        self._train_config: dict[str, ConfigRecordValues] = dict(train_config or {})
        if (offer := Offer.of(layout, settings.wire, settings.client_returns)) is not None:
            self._train_config |= offer.config()

    def encode(self, assignment: Assignment, node_id: int, ttl: float, *, compressed: bool = False) -> Message:
        """The dispatch for one node; `compressed` if it has shown that it can read that."""
        model = self._layout.unflatten(assignment.params, copy=False)
        sent = compress_model(model) if compressed else model
        arrays = {
            name: Array(array) if array is model[name] else bfloat16(array)  # those it compressed are new
            for name, array in sent.items()
        }
        config = {**self._train_config, VERSION: assignment.version, NONCE: assignment.nonce}
        content = RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(config)})
        return Message(content, dst_node_id=node_id, message_type=MessageType.TRAIN, ttl=ttl)

    def decode(self, reply: Message, assignment: Assignment) -> Reply:
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
                compressed=_compressed(record),
            )
        except Exception:  # a hostile client may raise anything from Flower's or NumPy's readers
            return Reason.MALFORMED


def reported(reply: Message) -> dict[str, float]:
    """What a client says of itself in its metrics, as far as it is of use here; empty if it says nothing."""
    try:
        return next((said for metrics in reply.content.metric_records.values() if (said := read_report(metrics))), {})
    except Exception:  # a hostile client may raise anything from Flower's readers
        return {}


def _compressed(record: ArrayRecord) -> bytes | None:
    """The bytes of a compressed update; None if this is one in named arrays."""
    arrays = list(record.values())
    return arrays[0].data if len(arrays) == 1 and arrays[0].stype == COMPRESSED else None


def _signature(reply: Message) -> object:
    """The one signature in an update, or None."""
    found = [config[SIGNATURE] for config in reply.content.config_records.values() if SIGNATURE in config]
    return found[0] if len(found) == 1 else None
