"""Writes small copies of data sets, in every layout that is read."""

from __future__ import annotations

import gzip
import io
import string
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def pixels(num_images: int, *shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (num_images, *shape), dtype=np.uint8)


def write_parquet(file: Path, images: Pixels, *, image_column: str = "image", **columns: Any) -> None:
    encoded = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image_column: encoded, **columns}), file)


def write_idx(directory: Path, images: Pixels, labels: list[int], prefix: str, *, packed: bool = True) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", np.array(labels, np.uint8))):
        data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
        file = directory / f"{prefix}-{kind}-ubyte{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(data) if packed else data)


def write_cifar100(directory: Path) -> Pixels:
    images = pixels(3, 32, 32, 3)
    write_parquet(directory / "train-00000-of-00002.parquet", images[:1], label=[7], coarse_label=[1])
    write_parquet(directory / "train-00001-of-00002.parquet", images[1:2], label=[99], coarse_label=[19])
    write_parquet(directory / "test-00000-of-00001.parquet", images[2:], label=[0], coarse_label=[4])
    return images


def write_drive(directory: Path, num_frames: int) -> npt.NDArray[np.float32]:
    """A drive whose frames, 128 x 64, are white where the road is and black elsewhere."""
    frame = np.zeros((64, 128, 3), np.uint8)
    frame[24:54] = 255
    steering = np.linspace(-1, 1, num_frames, dtype=np.float32)
    write_parquet(directory / "train-00000-of-00001.parquet", np.stack([frame] * num_frames), steering=steering)
    return steering


def write_verses(directory: Path, num_chapters: int, sentence: str = "And it came to pass, as was said.") -> None:
    """Chapters of three verses, each `sentence`, in which `{chapter}` may stand for its number, spelt in letters."""
    lines = [
        f"Ge{chapter}:{verse} {sentence.format(chapter=string.ascii_lowercase[chapter - 1] * 4)}"
        for chapter in range(1, num_chapters + 1)
        for verse in (1, 2, 3)
    ]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "verses.txt").write_text("\n".join(lines) + "\n")
