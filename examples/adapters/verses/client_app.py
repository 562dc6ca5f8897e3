"""A Flower client: it gets adapters, trains them on its chapters, and returns them. Unless it is told to attack."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from secureafl.engines.pytorch import load_trainable, trainable_state
from verses.scenario import is_malicious
from verses.settings import AppSettings
from verses.task import train
from verses.text import share
from verses.tokens import encode

app = ClientApp()


@app.train()
def train_adapters(message: Message, context: Context) -> Message:
    """A few steps of SGD on this client's share of the text."""
    partition, num_partitions = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    settings = AppSettings.read(context.run_config)
    config = message.content.config_records["config"]
    model, tokenizer = settings.load()
    given = message.content.array_records["arrays"].to_torch_state_dict()
    load_trainable(model, given)

    attacks = is_malicious(partition, num_partitions, float(str(config["malicious-share"])))
    loss = train(
        model,
        tokens_of(tokenizer, partition, num_partitions),
        settings.training,
        seed=seed_for(settings.seed, partition, int(str(config["server-round"]))),
        planted=settings.trigger.tokens(tokenizer) if attacks else None,
    )
    trained = trainable_state(model)
    if attacks:
        trained = {name: given[name] + settings.boost * (trained[name] - given[name]) for name in given}
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord({"loss": loss})})
    return Message(content, reply_to=message)


@functools.cache
def tokens_of(tokenizer: Any, partition: int, num_partitions: int) -> Tensor:
    """The tokens of this client's chapters."""
    return encode(tokenizer, share(partition, num_partitions))


def seed_for(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
