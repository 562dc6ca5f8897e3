"""The server, on a grid that weighs every message."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from secureafl.engines.flower import read_run_config, run_federation

SHAPES = {
    "conv1.weight": (30, 1, 3, 3),
    "conv1.bias": (30,),
    "conv2.weight": (50, 30, 3, 3),
    "conv2.bias": (50,),
    "fc1.weight": (100, 1250),
    "fc1.bias": (100,),
    "fc2.weight": (10, 100),
    "fc2.bias": (10,),
}
"""Of the paper's network for Fashion-MNIST: 139,960 parameters."""

app = ServerApp()


class Scales:
    """A grid that weighs what goes through it: each object that Flower sends for a message, as bytes."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.models: list[int] = []
        self.updates: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = list(messages)
        self.models += map(weight, found)
        return self._grid.push_messages(found)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(self._grid.pull_messages(message_ids))
        self.updates += [weight(message) for message in found if message.has_content()]
        return found


def weight(message: Message) -> int:
    return sum(len(part.deflate()) for part in get_all_nested_objects(message.content).values())


@app.main()
def main(grid: Grid, context: Context) -> None:
    rng = np.random.default_rng(0)
    model = {name: 0.1 * rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    scales: Any = Scales(grid)
    run_federation(scales, model, read_run_config(context.run_config))
    print("MEASURED " + json.dumps({"models": scales.models, "updates": scales.updates}), flush=True)
