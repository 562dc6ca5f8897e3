"""An ordinary Flower client: it gets weights, trains, and returns weights. Unless it is told to attack."""

from __future__ import annotations

import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task
from quickstart.poison import POISONS, chosen_poison

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A few steps of SGD on this client's share of the data."""
    node, run = context.node_config, context.run_config
    partition, num_partitions = int(node["partition-id"]), int(node["num-partitions"])
    arrays, config = message.content.array_records["arrays"], message.content.config_records["config"]

    time.sleep(float(node.get("delay", 0.0)))  # a slow machine
    model = task.Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    images, labels = task.load_data(partition, num_partitions)
    loss = task.train(
        model,
        images,
        labels,
        num_steps=int(run["local-steps"]),
        batch_size=int(run["batch-size"]),
        lr=float(run["lr"]),
        seed=seed_for(int(run["seed"]), partition, int(str(config["server-round"]))),
    )
    trained = ArrayRecord(model.state_dict())
    if poison := chosen_poison(node, config):
        trained = POISONS[poison](arrays, trained)
    metrics = MetricRecord({"loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


def seed_for(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
