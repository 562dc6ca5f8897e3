"""A client of a region, honest or malicious, and a whole region as a client of the top: the node config says which."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from regions.task import Weights, load_data, train
from secureafl.engines.flower import regional_update

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    if "region-dir" in context.node_config:
        return regional_update(message, str(context.node_config["region-dir"]))
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    points, classes = load_data(int(context.node_config["partition-id"]))
    trained = train(
        received, points, classes, num_steps=int(context.run_config["local-steps"]), lr=float(context.run_config["lr"])
    )
    if context.node_config.get("malicious"):
        trained = away(received, trained, float(context.run_config["malicious-scale"]))
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in trained.items()}),
            "metrics": MetricRecord({"num-examples": len(classes)}),
        }
    )
    return Message(content, reply_to=message)


def away(received: Weights, trained: Weights, scale: float) -> Weights:
    """Weights so many times as far on the other side of where training leads."""
    return {name: received[name] - scale * (trained[name] - received[name]) for name in received}
