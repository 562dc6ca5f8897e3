"""The paper's convolutional network as flat vectors, and Fashion-MNIST from its four files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn

BATCH = 32


class Network:
    """139,960 parameters: two valid 3x3 convolutions with pooling, two dense layers."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        first = [nn.Conv2d(1, 30, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(30, 50, 3), nn.ReLU(), nn.MaxPool2d(2)]
        self._module = nn.Sequential(*first, nn.Flatten(), nn.Linear(1250, 100), nn.ReLU(), nn.Linear(100, 10))
        self._module = self._module.to(memory_format=torch.channels_last)
        self._parameters = list(self._module.parameters())
        self._loss = nn.CrossEntropyLoss()

    def params(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().ravel() for p in self._parameters])

    def gradient(self, params: np.ndarray, images: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
        self._load(params)
        self._module.zero_grad()
        self._loss(self._module(images), labels).backward()
        return np.concatenate([p.grad.numpy().ravel() for p in self._parameters if p.grad is not None])

    def error_rate(self, params: np.ndarray, images: torch.Tensor, labels: torch.Tensor) -> float:
        self._load(params)
        with torch.no_grad():
            hits = [(self._module(x).argmax(1) == y) for x, y in zip(images.split(500), labels.split(500), strict=True)]
        return 1.0 - float(torch.cat(hits).float().mean())

    def _load(self, params: np.ndarray) -> None:
        with torch.no_grad():
            vector, start = torch.from_numpy(params.copy()), 0
            for p in self._parameters:
                p.copy_(vector[start : start + p.numel()].view(p.shape))
                start += p.numel()


def read_images(folder: Path, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 28, 28) within [0, 1] and labels (n,); name is `train` or `t10k`."""
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    images = torch.from_numpy(pixels.astype(np.float32) / 255.0).to(memory_format=torch.channels_last)
    return images, torch.from_numpy(labels.astype(np.int64))


def partition(labels: np.ndarray, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Sample numbers per client: a label goes to its own group of clients with probability 1/2, else to any other."""
    groups = np.array_split(rng.permutation(num_clients), 10)
    own = rng.random(len(labels)) < 0.5
    group = np.where(own, labels, (labels + rng.integers(1, 10, len(labels))) % 10)
    client = np.array([rng.choice(groups[g]) for g in group])
    return [np.flatnonzero(client == k) for k in range(num_clients)]
