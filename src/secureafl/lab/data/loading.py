"""Loading a data set by name.

Where it comes from is one setting, `source`: "hub", or a directory that holds one directory per data set
(`<source>/cifar10/train-00000-of-00005.parquet`, …). Left open, the environment variable SECUREAFL_DATA may name that
directory; then Debian's packages are looked at, the place where they install data sets and the program that prints this
one; and without the variable, the hub.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from secureafl.errors import DataError, SettingsError
from secureafl.lab.arrays import Images, Labels
from secureafl.lab.data.catalogue import DATASETS, SYSTEM_DIRECTORY, DatasetRecipe
from secureafl.lab.data.decoding import decoded
from secureafl.lab.data.sources import Hub, IdxDirectory, ParquetDirectory, Source, UdacityLog, Verses
from secureafl.settings import nearest

ENVIRONMENT_VARIABLE = "SECUREAFL_DATA"
"""Names the directory of data sets when the setting `source` is left open."""

HUB = "hub"

LabelKind: TypeAlias = Literal["fine", "coarse"]
"""CIFAR-100 alone has both: its 100 classes, and their 20 groups."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in two parts. Arrays are mapped from files: read them, do not write them.

    x            (N, C, H, W) uint8
    y            (N,) int64 class numbers, or float32 targets of a regression
    num_classes  None for a regression
    """

    name: str
    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    num_classes: int | None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train_x.shape[1:]
        return channels, height, width


def load(
    name: str, source: str | Path | None = None, labels: LabelKind = "fine", *, cache: Path | None = None
) -> Dataset:
    """The data set of this name, decoded on first use and mapped into memory from then on.

    source  "hub", a directory, or None for the rule above
    labels  "coarse" for the 20 superclasses of CIFAR-100
    cache   where decoded arrays are kept; by default secureafl/ in the user's cache directory
    """
    if name not in DATASETS:
        raise SettingsError(f"no data set is called {name!r}; {nearest(name, list(DATASETS))}")
    recipe = DATASETS[name]
    if labels not in recipe.targets:
        raise SettingsError(f"labels = {labels!r}: {name} has {' and '.join(recipe.targets)} labels")
    directory = decoded(name, recipe, find_source(name, source), cache or default_cache())
    num_classes, _ = recipe.targets[labels]
    return Dataset(
        name=name,
        train_x=np.load(directory / "train_x.npy", mmap_mode="r"),
        train_y=np.load(directory / f"train_{labels}.npy"),
        test_x=np.load(directory / "test_x.npy", mmap_mode="r"),
        test_y=np.load(directory / f"test_{labels}.npy"),
        num_classes=num_classes,
    )


def default_cache() -> Path:
    """`secureafl/` in the user's cache directory, which XDG_CACHE_HOME may move."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "secureafl"


def find_source(name: str, source: str | Path | None = None) -> Source:
    """The copy to read, or an error that says how to get one."""
    recipe = DATASETS[name]
    if source == HUB:
        return _hub(name, recipe)
    named = source or os.environ.get(ENVIRONMENT_VARIABLE)
    places = [Path(named).expanduser()] if named else []
    if source is None:
        places.append(Path(SYSTEM_DIRECTORY))
    for place in places:
        if (found := _in_directory(place / name, recipe)) is not None:
            return found
    if source is None and recipe.printed_by is not None and shutil.which(recipe.printed_by[0]) is not None:
        return Verses.printed(recipe.printed_by)
    if named or recipe.hub is None:
        raise DataError(_missing(name, recipe, places))
    return _hub(name, recipe)


def _in_directory(directory: Path, recipe: DatasetRecipe) -> Source | None:
    if next(directory.rglob("train-*.parquet"), None) is not None:
        return ParquetDirectory(directory, recipe)
    if next(directory.glob("train-images-idx3-ubyte*"), None) is not None:
        return IdxDirectory(directory)
    if (directory / "driving_log.csv").is_file():
        return UdacityLog(directory)
    if (directory / "verses.txt").is_file():
        return Verses.in_file(directory / "verses.txt")
    return None


def _hub(name: str, recipe: DatasetRecipe) -> Hub:
    if recipe.hub is None:
        raise DataError(f"{name} is not on the hub; {_advice(name, recipe)}")
    return Hub(recipe, recipe.hub)


def _missing(name: str, recipe: DatasetRecipe, places: list[Path]) -> str:
    looked = " or ".join(str(place / name) for place in places)
    return f"no copy of {name} in {looked}; {_advice(name, recipe)}"


def _advice(name: str, recipe: DatasetRecipe) -> str:
    ways = [f"put {recipe.files} into <directory>/{name} and set source or {ENVIRONMENT_VARIABLE} to <directory>"]
    if recipe.hub is not None:
        ways.append(f'set source to "{HUB}", which downloads {recipe.hub} from the Hugging Face hub')
    if recipe.package is not None:
        ways.append(f"install Debian's package {recipe.package} and set neither")
    return ", or ".join(ways)
