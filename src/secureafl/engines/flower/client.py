"""What a Flower ClientApp may use. A client that returns its trained weights needs none of it.

app = ClientApp(mods=[sign_updates, compress_updates])  # when the server asks for signed updates, offers a smaller wire

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
from secureafl.engines.flower.contents import (
    ARRAYS,
    CONFIG,
    NONCE,
    SIGNATURE,
    VERSION,
    compressed_record,
    record_digest,
    to_arrays,
)
from secureafl.engines.region_folder import RegionFolder
from secureafl.errors import SettingsError
from secureafl.types import Vector

KEY_SETTING = "secureafl-key"
"""Entry of a SuperNode's `--node-config` that names its signing key's file."""
RESIDUAL = "secureafl-residual"
"""Record of a client's state: what rounding took from its updates so far."""


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


def compress_updates(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod: send updates as small as the server's setting `wire` says, and read models that came compressed.

    What rounding takes from an update is kept in the node's state and added to the next one. With a server that offers
    nothing, all stays as it is. It goes behind `sign_updates`, which signs what is sent.
    """
    from secureafl.engines.offer import Offer  # its kernels take time to import, which other clients need not wait for
    from secureafl.wire import Feedback

    config = message.content.config_records.get(CONFIG, ConfigRecord())
    if (offer := Offer.read(config)) is None:
        return call_next(message, context)
    model = offer.model(to_arrays(message.content.array_records[ARRAYS]))
    message.content[ARRAYS] = ArrayRecord({name: Array(array) for name, array in model.items()})
    reply = call_next(message, context)
    if reply.has_error() or len(reply.content.array_records) != 1:
        return reply
    if SIGNATURE in reply.content:
        raise SettingsError("an update is compressed before it is signed: write mods=[sign_updates, compress_updates]")
    [(name, record)] = reply.content.array_records.items()
    feedback = Feedback(offer.wire, _residual(context))
    if (compressed := offer.compress(model, to_arrays(record), feedback)) is not None:
        reply.content[name] = compressed_record(compressed)
        assert feedback.residual is not None
        context.state[RESIDUAL] = ArrayRecord({RESIDUAL: Array(feedback.residual)})
    return reply


def _residual(context: Context) -> Vector | None:
    return context.state.array_records[RESIDUAL][RESIDUAL].numpy() if RESIDUAL in context.state else None
