"""Where a data set is read from: a directory with Parquet or IDX files, Udacity's log or verses, a program that prints
verses, or the Hugging Face hub.

A source hands out the images of one part of a set one at a time, as the Pillow images or arrays they were stored as;
`secureafl.lab.data.decoding` makes arrays of one shape of them.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import math
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from secureafl.errors import DataError
from secureafl.lab.data.catalogue import VERSES_TEST_EVERY, VERSES_WINDOWS, DatasetRecipe
from secureafl.lab.data.characters import classes_of, windows

Targets: TypeAlias = dict[str, npt.NDArray[Any]]

_PARQUET_ROWS = 512
_IDX_PARTS = {"train": "train", "test": "t10k"}
_VERSE = re.compile(r"(\w+):\d+ (.*)")


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test part of a set. `images` can be walked through once, beside `targets`."""

    images: Iterator[Image.Image]
    targets: Targets


class Source(Protocol):
    """One copy of one data set."""

    def identity(self) -> str:
        """What tells this copy from another."""

    def part(self, split: str) -> Part | None:
        """The part of this name, or None if there is none."""


class ParquetDirectory:
    """`train-*.parquet` and the like, at any depth, in the hub's layout: images as encoded bytes beside their labels.

    A subset is a set: what is there is used.
    """

    def __init__(self, directory: Path, recipe: DatasetRecipe) -> None:
        self._directory = directory
        self._recipe = recipe

    def identity(self) -> str:
        return _names_and_sizes(self._directory, sorted(self._directory.rglob("*.parquet")))

    def part(self, split: str) -> Part | None:
        import pyarrow.parquet as pq

        files = sorted(self._directory.rglob(f"{split}-*.parquet"))
        if not files:
            return None
        columns = pq.read_schema(files[0]).names
        wanted = {kind: _pick(names, columns, files[0]) for kind, (_, names) in self._recipe.targets.items()}
        table = pq.read_table(files, columns=list(wanted.values()))
        targets = {kind: table[column].to_numpy() for kind, column in wanted.items()}
        return Part(self._images(files, _pick(self._recipe.image_columns, columns, files[0])), targets)

    @staticmethod
    def _images(files: list[Path], column: str) -> Iterator[Image.Image]:
        import pyarrow.parquet as pq

        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(_PARQUET_ROWS, columns=[column]):
                for data in batch.column(0).field("bytes"):
                    yield Image.open(io.BytesIO(data.as_py()))


class IdxDirectory:
    """The four IDX files of the MNIST family, compressed or not."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def identity(self) -> str:
        return _names_and_sizes(self._directory, sorted(self._directory.glob("*-ubyte*")))

    def part(self, split: str) -> Part | None:
        prefix = _IDX_PARTS.get(split)
        if prefix is None:
            return None
        images = self._read(f"{prefix}-images-idx3-ubyte")
        labels = self._read(f"{prefix}-labels-idx1-ubyte")
        return Part((Image.fromarray(image) for image in images), {"fine": labels.astype(np.int64)})

    def _read(self, name: str) -> npt.NDArray[np.uint8]:
        plain, packed = self._directory / name, self._directory / f"{name}.gz"
        if not plain.exists() and not packed.exists():
            raise DataError(f"{self._directory} holds neither {name} nor {name}.gz")
        return parse_idx(plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes()), name)


class UdacityLog:
    """Udacity's own layout: `driving_log.csv` with one centre-camera frame and steering angle a row, beside `IMG/`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def identity(self) -> str:
        return _names_and_sizes(self._directory, [self._directory / "driving_log.csv"])

    def part(self, split: str) -> Part | None:
        if split != "train":
            return None
        with (self._directory / "driving_log.csv").open(newline="") as file:
            rows = [row for row in csv.reader(file) if row and row[0].strip() != "center"]
        # The log holds the paths of the machine it was recorded on; only the file's name still means something.
        names = [row[0].strip().replace("\\", "/").rpartition("/")[2] for row in rows]
        images = (Image.open(self._directory / "IMG" / name) for name in names)
        return Part(images, {"fine": np.array([float(row[3]) for row in rows], np.float32)})


class Verses:
    """The verses of a book, one a line after its chapter and number: `Ge1:1 In the beginning …`.

    Every fifth chapter is for testing. The chapters of a part are joined, and windows of characters are taken from them
    in their order.
    """

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin

    @classmethod
    def in_file(cls, file: Path) -> Verses:
        """A text file."""
        return cls(file.read_text(encoding="utf-8"), str(file))

    @classmethod
    def printed(cls, command: tuple[str, ...]) -> Verses:
        """What a program prints."""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, encoding="utf-8")
        if done.returncode != 0:
            raise DataError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return cls(done.stdout, f"what {command[0]} prints")

    def identity(self) -> str:
        return f"verses:{hashlib.sha256(self._text.encode()).hexdigest()}"

    def part(self, split: str) -> Part | None:
        if split not in VERSES_WINDOWS:
            return None
        is_test = split == "test"
        chapters = itertools.groupby(self._verses(), key=lambda verse: verse[0])
        text = " ".join(
            " ".join(verse for _, verse in verses)
            for number, (_, verses) in enumerate(chapters, start=1)
            if (number % VERSES_TEST_EVERY == 0) == is_test
        )
        x, y = windows(classes_of(text), VERSES_WINDOWS[split])
        return Part((Image.fromarray(window) for window in x), {"fine": y})

    def _verses(self) -> Iterator[tuple[str, str]]:
        """Each verse's chapter and text."""
        for number, line in enumerate(self._text.splitlines(), start=1):
            if (verse := _VERSE.fullmatch(line)) is None:
                raise DataError(f"line {number} of {self._origin} is {line[:40]!r}, not 'Ge1:1 In the beginning …'")
            yield verse[1], verse[2]


class Hub:
    """The Hugging Face hub, through `datasets`, which downloads the set once and keeps it."""

    def __init__(self, recipe: DatasetRecipe, repository: str) -> None:
        self._recipe = recipe
        self._repository = repository

    def identity(self) -> str:
        return f"hub:{self._repository}"

    def part(self, split: str) -> Part | None:
        import datasets

        parts: Mapping[str, Any] = datasets.load_dataset(self._repository)
        if split not in parts:
            return None
        rows = parts[split]
        image = _pick(self._recipe.image_columns, rows.column_names, self._repository)
        targets = {
            kind: np.asarray(rows[_pick(names, rows.column_names, self._repository)])
            for kind, (_, names) in self._recipe.targets.items()
        }
        return Part((row[image] for row in rows.select_columns([image])), targets)


def parse_idx(data: bytes, name: str) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of bytes: two zeros, the type 8, the number of axes, their lengths, the values."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{name} is not an IDX file of bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
    if len(data) != start + math.prod(shape):
        raise DataError(f"{name} is cut short: its header says {shape}, {len(data) - start} bytes follow")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _pick(wanted: tuple[str, ...], columns: list[str], where: object) -> str:
    """The first of the wanted columns that exists."""
    for name in wanted:
        if name in columns:
            return name
    raise DataError(f"{where} has the columns {', '.join(columns)}, but none called {' or '.join(wanted)}")


def _names_and_sizes(directory: Path, files: list[Path]) -> str:
    return ";".join(f"{file.relative_to(directory)}={file.stat().st_size}" for file in files)
