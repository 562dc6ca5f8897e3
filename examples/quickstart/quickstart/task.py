"""What is learned: the paper's CNN on Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from quickstart.data import load_share, load_split

MEAN, DEVIATION = np.float32(0.286), np.float32(0.353)  # of all training pixels
torch.set_num_threads(1)  # clients run side by side, each on a core of its own


class Net(nn.Sequential):
    """Two convolutions and two dense layers: 139,960 parameters."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 30, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(30, 50, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * 5 * 5, 100), nn.ReLU(),
            nn.Linear(100, 10),
        )  # fmt: skip
        self.to(memory_format=torch.channels_last)  # convolutions are about twice as fast on a CPU


def initial_model(seed: int) -> Net:
    """The same first model for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def load_data(partition_id: int, num_partitions: int) -> tuple[Tensor, Tensor]:
    """One client's images and labels."""
    return to_tensors(*load_share(partition_id, num_partitions))


def to_tensors(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """Images as floats around 0, with a channel."""
    pixels = (images.astype(np.float32) / 255.0 - MEAN) / DEVIATION
    return torch.from_numpy(pixels)[:, None], torch.from_numpy(labels.astype(np.int64))


def train(
    model: nn.Module, images: Tensor, labels: Tensor, *, num_steps: int, batch_size: int, lr: float, seed: int
) -> float:
    """A few steps of SGD; returns the mean loss on the way."""
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    total = 0.0
    for _ in range(num_steps):
        batch = torch.randint(len(labels), (batch_size,), generator=rng)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / num_steps


@torch.inference_mode()
def accuracy(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Share of the test images that this model gets right."""
    model = Net()
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    images, labels = to_tensors(*load_split("test"))
    guesses = torch.cat([model(images[start : start + 100]).argmax(1) for start in range(0, len(images), 100)])
    return {"accuracy": float((guesses == labels).float().mean())}
