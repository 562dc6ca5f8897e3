"""The networks of the experiments.

    cnn        the paper's: two valid 3 x 3 convolutions (30 and 50 filters), each followed by 2 x 2 max pooling and
               ReLU, then 100 hidden units. On 28 x 28 grey images with 10 classes it has 139,960 parameters.
    resnet20   K. He, X. Zhang, S. Ren and J. Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section
               4.2: three stages of three blocks with 16, 32 and 64 filters, shortcuts without parameters, and the mean
               over all positions before the last layer, so that images of any size fit. With 10 classes 269,722
               parameters.
    small-cnn  the paper's with 8 and 16 filters and 32 hidden units, 14,410 parameters, for tests in a hurry.
    mlp        ours: 32 hidden units over all pixels, for experiments with many clients, whose gradients must be cheap.
               On 28 x 28 grey images with 10 classes it has 25,450 parameters.
    char-mlp   ours, for windows of text (`secureafl.lab.data.characters`): after Y. Bengio, R. Ducharme, P. Vincent and
               C. Jauvin, "A Neural Probabilistic Language Model", JMLR 3, 2003, with characters in the place of words.
               Each character becomes a vector of 28 learned values. 256 hidden units see those of the last row one by
               one, and the mean of each row before. On 8 x 8 windows with 28 classes it has 115,756 parameters.

`char-mlp` is not recurrent for the sake of time: in a trial that was not kept, a GRU of 128 units took many times as
long for a gradient and erred hardly less.

Departure: ResNet-20 has group normalisation where the original has batch normalisation. The running mean and variance
of the latter are no part of the gradient, so a server that learns from gradients alone never hears of them, and they
cannot be attacked or defended. Groups have 8 channels; the number of parameters stays the same.

Departure: with a single output, for a regression, the second normalisation of each block starts with the scale 0.25
instead of 1. With 1 the features are so long that the squared error diverges at the paper's learning rate of 0.01
within five steps; with 0.25 it falls from the first.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from secureafl.errors import SettingsError
from secureafl.settings import nearest

ImageShape: TypeAlias = tuple[int, int, int]
"""(C, H, W)."""

Build: TypeAlias = Callable[[ImageShape, int], nn.Module]
"""Makes a network for images of this shape, with this many outputs."""

GROUP_CHANNELS = 8
"""Channels that group normalisation averages over together."""

REGRESSION_SCALE = 0.25
"""Initial scale of what a block adds to its shortcut, when there is one output."""

HIDDEN = 32
"""Hidden units of `mlp`."""

CHARACTER_VALUES = 28
"""Length of the learned vector that stands for a character."""

CHARACTER_HIDDEN = 256
"""Hidden units over the characters of a window."""

_BLOCKS_PER_STAGE = 3
_STAGES = (16, 32, 64)


def cnn(
    image_shape: ImageShape, num_outputs: int, *, filters: tuple[int, int] = (30, 50), hidden: int = 100
) -> nn.Module:
    """Two convolutions, two dense layers."""
    channels, height, width = image_shape
    positions = _pooled(height) * _pooled(width)
    if positions < 1:
        raise SettingsError(f"image_shape = {image_shape}: this network needs at least 10 x 10 pixels")
    # ReLU after pooling gives what the paper's ReLU before pooling gives, on a quarter of the values.
    return nn.Sequential(
        nn.Conv2d(channels, filters[0], 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(filters[0], filters[1], 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(filters[1] * positions, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_outputs),
    )


def small_cnn(image_shape: ImageShape, num_outputs: int) -> nn.Module:
    """The paper's network on a diet."""
    return cnn(image_shape, num_outputs, filters=(8, 16), hidden=32)


def mlp(image_shape: ImageShape, num_outputs: int) -> nn.Module:
    """One hidden layer over all pixels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(image_shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_outputs)
    )


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut, which skips every second pixel and pads channels with zeros."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.stride = 1 if in_channels == channels else 2
        self.extra_channels = channels - in_channels
        self.conv1 = nn.Conv2d(in_channels, channels, 3, self.stride, padding=1, bias=False)
        self.norm1 = _norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.extra_channels:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.extra_channels))
        return functional.relu(out + x)


class ResNet20(nn.Module):
    """19 convolutions and one dense layer."""

    def __init__(self, image_shape: ImageShape, num_outputs: int) -> None:
        super().__init__()
        first = _STAGES[0]
        self.conv = nn.Conv2d(image_shape[0], first, 3, padding=1, bias=False)
        self.norm = _norm(first)
        widths = [first, *(channels for channels in _STAGES for _ in range(_BLOCKS_PER_STAGE))]
        self.blocks = nn.Sequential(*(Block(before, after) for before, after in itertools.pairwise(widths)))
        self.dense = nn.Linear(_STAGES[-1], num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, Block) and num_outputs == 1:
                nn.init.constant_(module.norm2.weight, REGRESSION_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(functional.relu(self.norm(self.conv(x))))
        logits: Tensor = self.dense(out.mean(dim=(2, 3)))
        return logits


class CharMLP(nn.Module):
    """Predicts the character after a window: as many classes come in as go out.

    Pixels are in [-1, 1], as a `Task` hands them over. Each stands for the class whose share of that range it is in.
    """

    def __init__(self, image_shape: ImageShape, num_outputs: int) -> None:
        super().__init__()
        channels, height, width = image_shape
        if channels != 1 or num_outputs < 2:
            raise SettingsError(
                f"image_shape = {image_shape} with {num_outputs} outputs: char-mlp reads windows of text, one channel "
                "of characters with as many classes as outputs; choose another architecture for images"
            )
        self.num_characters = num_outputs
        self.embedding = nn.Embedding(num_outputs, CHARACTER_VALUES)
        self.hidden = nn.Linear((height - 1 + width) * CHARACTER_VALUES, CHARACTER_HIDDEN)
        self.dense = nn.Linear(CHARACTER_HIDDEN, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.embedding(self.characters(x))
        earlier, last = vectors[:, :-1].mean(dim=2), vectors[:, -1]
        logits: Tensor = self.dense(functional.relu(self.hidden(torch.cat([earlier, last], dim=1).flatten(1))))
        return logits

    def characters(self, x: Tensor) -> Tensor:
        """(N, H, W) class numbers."""
        shares = (x.squeeze(1) + 1) * (self.num_characters / 2)
        return shares.long().clamp(0, self.num_characters - 1)


ARCHITECTURES: Mapping[str, Build] = {
    "cnn": cnn,
    "resnet20": ResNet20,
    "small-cnn": small_cnn,
    "mlp": mlp,
    "char-mlp": CharMLP,
}


def build(architecture: str, image_shape: ImageShape, num_outputs: int) -> nn.Module:
    """A network by name."""
    if architecture not in ARCHITECTURES:
        raise SettingsError(f"no network is called {architecture!r}; {nearest(architecture, list(ARCHITECTURES))}")
    return ARCHITECTURES[architecture](image_shape, num_outputs)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // GROUP_CHANNELS, channels)


def _pooled(size: int) -> int:
    """What two valid 3 x 3 convolutions with pooling leave of a side."""
    return max(0, ((size - 2) // 2 - 2) // 2)
