"""A data set of a few hundred images in the files of Fashion-MNIST, and cells that take seconds on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from secureafl.lab.cells.cell import CellSettings

NUM_TRAIN, NUM_TEST = 480, 100


def write_tiny_fashion(directory: Path) -> Path:
    """Images whose class is a bright square's place; returns the directory to name as `source`."""
    place = directory / "fashion-mnist"
    place.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 5)
            image[4 + 10 * row : 12 + 10 * row, 1 + 5 * column : 7 + 5 * column] += 180
        (place / f"{prefix}-images-idx3-ubyte").write_bytes(_idx(images))
        (place / f"{prefix}-labels-idx1-ubyte").write_bytes(_idx(labels))
    return directory


def tiny_cell(source: Path, **changes: Any) -> CellSettings:
    """A cell of eight clients and thirty rounds."""
    values: dict[str, Any] = {
        "source": str(source),
        "architecture": "small-cnn",
        "num_clients": 8,
        "malicious_fraction": 0.25,
        "batch_size": 8,
        "rounds": 30,
        "evaluate_every": 10,
        "num_trusted": 20,
        "server_lr": 0.05,
    }
    return CellSettings(**{**values, **changes})


def _idx(array: npt.NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()
