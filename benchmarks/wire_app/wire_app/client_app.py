"""A Flower client that returns weights a noisy step nearer to 1, and has the mod for a smaller wire."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from secureafl.engines.flower import compress_updates

app = ClientApp(mods=[compress_updates])


@app.train()
def train(message: Message, context: Context) -> Message:
    rng = np.random.default_rng([context.node_id, int(message.content.config_records["config"]["server-round"])])
    trained = {}
    for name, array in message.content.array_records["arrays"].items():
        weights = array.numpy()
        noise = rng.standard_normal(weights.shape, np.float32)
        trained[name] = Array((weights + 0.1 * (1.0 - weights) + 0.01 * noise).astype(np.float32))
    return Message(RecordDict({"arrays": ArrayRecord(trained)}), reply_to=message)
