"""What is learned: the paper's CNN on Fashion-MNIST. This file knows no engine, and both use it as it is."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from secureafl.lab.data import Dataset, fang, load
from secureafl.lab.simulation.models import build

MEAN, DEVIATION = 0.286, 0.353  # of all training pixels
NON_IID = 0.5
torch.set_num_threads(1)  # clients run side by side, each on a core of its own


def initial_model() -> dict[str, Tensor]:
    """The same first model every time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build("cnn", (1, 28, 28), 10).state_dict()


def train(arrays: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """A few steps of SGD on this client's share of the images; returns the trained weights."""
    model = _model_of(arrays)
    images, labels = _share(int(config["partition-id"]), int(config["num-partitions"]))
    rng = torch.Generator().manual_seed(int(config["server-round"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["lr"]))
    for _ in range(int(config["local-steps"])):
        batch = torch.randint(len(labels), (int(config["batch-size"]),), generator=rng)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


@torch.inference_mode()
def accuracy(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Share of the test images that this model gets right."""
    model, data = _model_of(arrays), _data()
    guesses = [model(_to_floats(data.test_x[start : start + 500])).argmax(1) for start in range(0, 10_000, 500)]
    return {"accuracy": float((torch.cat(guesses) == torch.from_numpy(data.test_y)).float().mean())}


def _model_of(arrays: Mapping[str, npt.NDArray[Any]]) -> nn.Module:
    model = build("cnn", (1, 28, 28), 10)
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    return model


@functools.cache
def _data() -> Dataset:
    return load("fashion-mnist")


@functools.cache
def _share(partition: int, num_partitions: int) -> tuple[Tensor, Tensor]:
    data = _data()
    mine = fang(data.train_y, num_partitions, 10, NON_IID, np.random.default_rng(0))[partition]
    return _to_floats(data.train_x[mine]), torch.from_numpy(data.train_y[mine])


def _to_floats(images: npt.NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(np.array(images)).float() / 255.0 - MEAN) / DEVIATION
