"""The client on Flower."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fashion import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    config = {**context.run_config, **context.node_config, **message.content.config_records["config"]}
    return Message(RecordDict({"arrays": ArrayRecord(task.train(arrays, config))}), reply_to=message)
