"""A client that does next to nothing, or waits as its node config says: the engine is what is measured."""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(float(context.node_config.get("delay", 0.0)))
    weights = message.content.array_records["arrays"]["w"].numpy()
    moved = weights + np.float32(0.01) * (1.0 + 0.1 * np.random.default_rng().standard_normal(weights.size, np.float32))
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved.astype(np.float32))})}), reply_to=message)
