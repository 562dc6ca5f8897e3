"""Decoding a data set once, into arrays that later runs map into memory.

    <cache>/<name>-<key>/train_x.npy      uint8 (N, C, H, W)
                         train_fine.npy   int64 or float32 (N,), one file per kind of label
                         test_x.npy, test_fine.npy

The key depends on the source's files and on the recipe, so a changed copy is decoded anew. The directory appears under
its name only when it is complete; two processes that decode at once do the work twice and agree on the result.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from secureafl.errors import DataError
from secureafl.lab.data.catalogue import UDACITY_BLOCK, UDACITY_TEST_EVERY, DatasetRecipe
from secureafl.lab.data.sources import Part, Source

_FORMAT = 1
"""Raise it whenever decoding changes, and old caches are left alone."""


def decoded(name: str, recipe: DatasetRecipe, source: Source, cache: Path) -> Path:
    """The directory with the arrays of this data set, made now if it is not there yet."""
    key = hashlib.sha256(f"{_FORMAT}|{recipe!r}|{source.identity()}".encode()).hexdigest()[:16]
    directory = cache / f"{name}-{key}"
    if not directory.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
        try:
            _decode(name, recipe, source, unfinished)
            _publish(unfinished, directory)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return directory


def _publish(unfinished: Path, directory: Path) -> None:
    try:
        unfinished.rename(directory)
    except OSError:
        if not directory.is_dir():  # else someone was faster, and their arrays are as good
            raise


def is_test_frame(num_frames: int) -> npt.NDArray[np.bool_]:
    """Which frames of a drive are for testing: every fifth block of 200."""
    block = np.arange(num_frames) // UDACITY_BLOCK
    return np.equal(block % UDACITY_TEST_EVERY, UDACITY_TEST_EVERY - 1)


def _decode(name: str, recipe: DatasetRecipe, source: Source, directory: Path) -> None:
    train = source.part("train")
    if train is None:
        raise DataError(f"{name}: this copy has no training part (train-*.parquet)")
    if recipe.time_split:
        aside = is_test_frame(len(train.targets["fine"]))
        images = _write_images(directory / "all_x.npy", train, recipe)
        for split, rows in (("train", ~aside), ("test", aside)):
            np.save(directory / f"{split}_x.npy", images[rows])
            _write_targets(directory, split, {kind: y[rows] for kind, y in train.targets.items()}, recipe)
        del images
        (directory / "all_x.npy").unlink()
        return
    test = next((part for split in recipe.test_splits if (part := source.part(split)) is not None), None)
    if test is None:
        raise DataError(f"{name}: this copy has no test part ({' or '.join(recipe.test_splits)})")
    for split, part in (("train", train), ("test", test)):
        _write_images(directory / f"{split}_x.npy", part, recipe)
        _write_targets(directory, split, part.targets, recipe)


def _write_images(file: Path, part: Part, recipe: DatasetRecipe) -> npt.NDArray[np.uint8]:
    num_images = len(next(iter(part.targets.values())))
    shape = (num_images, *recipe.image_shape)
    pixels: npt.NDArray[np.uint8] = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    for row, image in enumerate(part.images):
        pixels[row] = to_pixels(image, recipe)
    return pixels


def to_pixels(image: Image.Image, recipe: DatasetRecipe) -> npt.NDArray[np.uint8]:
    """(C, H, W): cropped if the recipe says so, then brought to its size (bilinear) if it has another."""
    channels, height, width = recipe.image_shape
    image = image.convert("L" if channels == 1 else "RGB")
    if recipe.crop_rows is not None:
        top, bottom = (round(fraction * image.height) for fraction in recipe.crop_rows)
        image = image.crop((0, top, image.width, bottom))
    if image.size != (width, height):
        if recipe.crop_rows is None:
            raise DataError(f"an image has {image.width} x {image.height} pixels; the set has {width} x {height}")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _write_targets(
    directory: Path, split: str, targets: dict[str, npt.NDArray[np.generic]], recipe: DatasetRecipe
) -> None:
    for kind, values in targets.items():
        num_classes, _ = recipe.targets[kind]
        if num_classes is not None and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
            raise DataError(f"{kind} labels run from {values.min()} to {values.max()}; there are {num_classes} classes")
        np.save(directory / f"{split}_{kind}.npy", values.astype(np.float32 if num_classes is None else np.int64))
