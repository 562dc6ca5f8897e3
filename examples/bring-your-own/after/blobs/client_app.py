"""A client that trains and returns its weights."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from blobs.task import load_data, train

app = ClientApp()


@app.train()
def train_on_own_data(message: Message, context: Context) -> Message:
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    points, classes = load_data(int(context.node_config["partition-id"]))
    trained = train(
        received, points, classes, num_steps=int(context.run_config["local-steps"]), lr=float(context.run_config["lr"])
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in trained.items()}),
            "metrics": MetricRecord({"num-examples": len(classes)}),
        }
    )
    return Message(content, reply_to=message)
