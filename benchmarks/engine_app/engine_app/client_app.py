"""A Flower client that does next to nothing, or waits as its node config says."""

import time

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from engine_app.measure import moved

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    time.sleep(float(context.node_config.get("delay", 0.0)))
    trained = moved({"w": message.content.array_records["arrays"]["w"].numpy()})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(trained["w"])})}), reply_to=message)
