"""What a Flower ClientApp may use. A client that returns its trained weights needs none of it.

app = ClientApp(mods=[sign_updates])          # when the server asks for signed updates

@app.train()
def train(msg, context):
    ...
    return delta_update(msg, start, trained)  # when the server has client-returns = "delta"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, MetricRecordValues, RecordDict

from secureafl.engines import signing
from secureafl.engines.flower.codec import ARRAYS, CONFIG, NONCE, SIGNATURE, VERSION, record_digest, to_arrays
from secureafl.engines.uplink import RegionFolder
from secureafl.errors import SettingsError

KEY_SETTING = "secureafl-key"
"""Entry of a SuperNode's `--node-config` that names its signing key's file."""


def delta_update(
    message: Message, start: Any, trained: Any, metrics: Mapping[str, MetricRecordValues] | None = None
) -> Message:
    """The update of a client that sends how far it moved: start minus trained, per floating-point array.

    Integer arrays are left out: the server does not use them.
    """
    before, after = to_arrays(start), to_arrays(trained)
    moved = {name: before[name] - after[name] for name in before if before[name].dtype.kind == "f"}
    return gradient_update(message, moved, metrics)


def gradient_update(
    message: Message, gradient: Any, metrics: Mapping[str, MetricRecordValues] | None = None
) -> Message:
    """The update of a client that sends a gradient at the model it was given, one array per parameter."""
    arrays = ArrayRecord({name: Array(array) for name, array in to_arrays(gradient).items()})
    return Message(RecordDict({ARRAYS: arrays, "metrics": MetricRecord(dict(metrics or {}))}), reply_to=message)


def regional_update(message: Message, region_dir: Path | str, timeout: float = 3600.0) -> Message:
    """The update of a whole region, for the server above it: give the region's server the model in this message, and
    send the weights that it leaves in `region_dir` once enough of its own clients' updates were judged.
    """
    received = to_arrays(message.content.array_records[ARRAYS])
    reached = RegionFolder(Path(region_dir)).ask(received, timeout)
    return gradient_update(message, reached)


def sign_updates(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod: sign every reply with the key that the node config names as `secureafl-key`."""
    if KEY_SETTING not in context.node_config:
        raise SettingsError(
            f"sign_updates needs a key: start the SuperNode with --node-config '{KEY_SETTING}=\"FILE\"'"
        )
    key = signing.read_private_key(Path(str(context.node_config[KEY_SETTING])))
    sent = message.content.config_records[CONFIG]
    nonce, version = sent[NONCE], sent[VERSION]
    reply = call_next(message, context)
    if reply.has_error() or not isinstance(nonce, bytes) or not isinstance(version, int):
        return reply
    [record] = reply.content.array_records.values()
    signature = signing.sign(key, nonce, version, record_digest(record))
    reply.content[SIGNATURE] = ConfigRecord({SIGNATURE: signature})
    return reply
