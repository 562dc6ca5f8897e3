"""Node config `role`: honest (the default), poison, slow, raise, exit, garbage, late-answer, victim, forger, or
uneven.

With `compresses = true` the node takes a smaller wire up.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from secureafl.engines.flower import compress_updates, sign_updates

PATIENCE = 60.0


def sign_if_there_is_a_key(message: Message, context: Context, call_next) -> Message:  # type: ignore[no-untyped-def]
    signs = "secureafl-key" in context.node_config
    return sign_updates(message, context, call_next) if signs else call_next(message, context)


def compress_if_told(message: Message, context: Context, call_next) -> Message:  # type: ignore[no-untyped-def]
    compresses = bool(context.node_config.get("compresses", False))
    return compress_updates(message, context, call_next) if compresses else call_next(message, context)


app = ClientApp(mods=[sign_if_there_is_a_key, compress_if_told])


@app.train()
def train(message: Message, context: Context) -> Message:
    weights = message.content.array_records["arrays"]["w"].numpy()
    role = str(context.node_config.get("role", "honest"))
    time.sleep(float(context.node_config.get("delay", context.run_config["delay"])))
    if role == "raise":
        raise RuntimeError("this node cannot train")
    if role == "exit":
        os._exit(1)
    if role == "garbage":
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 1.0})}), reply_to=message)
    if role == "victim":
        leak_and_wait(message, Path(str(context.run_config["leak"])))
    if role == "forger":
        return forge(message, answer(message, np.full_like(weights, 1000.0)), Path(str(context.run_config["leak"])))
    target = -9.0 if role == "poison" else 1.0
    if role == "uneven":  # rounding takes something from every update
        target = np.linspace(-1.0, 1.0, weights.size) ** 3
    return answer(message, (weights + 0.5 * (target - weights)).astype(np.float32))


def answer(message: Message, weights: np.ndarray) -> Message:  # type: ignore[type-arg]
    arrays = ArrayRecord({"w": Array(weights)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def leak_and_wait(message: Message, leak: Path) -> None:
    """Give away our message id, as a SuperNode's log does, and train until the forger has answered for us."""
    target = {"node_id": str(message.metadata.dst_node_id), "message_id": message.metadata.message_id}
    draft = leak.with_suffix(".draft")
    draft.write_text(json.dumps(target))
    draft.rename(leak)
    wait_for(leak.with_suffix(".forged"))
    time.sleep(6.0)  # long enough for the forged answer to be pulled first


def forge(own: Message, made: Message, leak: Path) -> Message:
    """Answer in the victim's name through our own authenticated connection.

    The SuperLink checks a node's key against the request, never against the message's metadata, and takes any reply
    whose claimed source is the destination of the message it claims to answer.
    """
    if leak.with_suffix(".forged").exists():
        return made
    wait_for(leak)
    leaked = json.loads(leak.read_text())
    forged = Message(made.content, reply_to=own, ttl=60.0)
    forged.metadata.__dict__["_src_node_id"] = int(leaked["node_id"])
    forged.metadata.__dict__["_reply_to_message_id"] = leaked["message_id"]
    leak.with_suffix(".forged").touch()
    return forged


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
