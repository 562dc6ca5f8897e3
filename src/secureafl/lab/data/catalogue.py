"""The data sets: what they are called, what they hold, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from secureafl.lab.data.characters import NUM_CHARACTERS, SIDE

UDACITY_ROWS = (60 / 160, 135 / 160)
"""The part of a frame that is kept, as fractions of its height: the road, without sky and bonnet."""

UDACITY_BLOCK = 200
"""Frames in a block of time, about twenty seconds."""

UDACITY_TEST_EVERY = 5
"""One block in this many is for testing: frames 800 to 999, 1800 to 1999, and so on.

The set has no official test part. Neighbouring frames are near-duplicates, so a random choice would test on what was
trained on; with blocks only the frames at their edges have such neighbours.
"""

VERSES_TEST_EVERY = 5
"""One chapter in this many is for testing, so that no test window holds a character of the training text."""

VERSES_WINDOWS: Mapping[str, int] = {"train": 60_000, "test": 10_000}
"""Windows that are taken from either part. For training one begins every 55 characters, so neighbours share a few."""

SYSTEM_DIRECTORY = "/usr/share/datasets"
"""Where Debian's packages install data sets."""


@dataclass(frozen=True, kw_only=True)
class DatasetRecipe:
    """One data set.

    image_shape   (C, H, W) of the decoded arrays
    targets       for each kind of label its number of classes (None: a regression) and the columns it may be found in
    image_columns the columns the image may be found in
    test_splits   the names the test part may have
    hub           its id on the Hugging Face hub
    crop_rows     fractions of the height between which an image is kept before it is resized
    time_split    no official test part: blocks of time are set aside
    files         what a local copy consists of, for someone who has none
    package       Debian's package of it
    printed_by    the command of that package that prints it; not in `repr`, which names decoded copies
    """

    image_shape: tuple[int, int, int]
    targets: Mapping[str, tuple[int | None, tuple[str, ...]]]
    image_columns: tuple[str, ...] = ("image", "img")
    test_splits: tuple[str, ...] = ("test",)
    hub: str | None = None
    crop_rows: tuple[float, float] | None = None
    time_split: bool = False
    files: str = "train-*.parquet and test-*.parquet"
    package: str | None = None
    printed_by: tuple[str, ...] | None = field(default=None, repr=False)


DATASETS: Mapping[str, DatasetRecipe] = {
    "fashion-mnist": DatasetRecipe(
        image_shape=(1, 28, 28),
        targets={"fine": (10, ("label",))},
        hub="zalando-datasets/fashion_mnist",
        files="its four IDX files (train-images-idx3-ubyte.gz and so on)",
        package="dataset-fashion-mnist",
    ),
    "cifar10": DatasetRecipe(
        image_shape=(3, 32, 32),
        targets={"fine": (10, ("label",))},
        hub="uoft-cs/cifar10",
    ),
    "cifar100": DatasetRecipe(
        image_shape=(3, 32, 32),
        targets={"fine": (100, ("fine_label", "label")), "coarse": (20, ("coarse_label",))},
        hub="uoft-cs/cifar100",
    ),
    "tiny-imagenet": DatasetRecipe(
        image_shape=(3, 64, 64),
        targets={"fine": (200, ("label",))},
        test_splits=("validation", "valid"),  # the official test images have no labels
        hub="zh-plus/tiny-imagenet",
        files="train-*.parquet and validation-*.parquet",
    ),
    "udacity": DatasetRecipe(
        image_shape=(3, 32, 64),
        targets={"fine": (None, ("steering",))},
        crop_rows=UDACITY_ROWS,
        time_split=True,
        files="what is in Udacity's sample of simulator driving (driving_log.csv and IMG/, from "
        "https://d17h27t6h515a5.cloudfront.net/topher/2016/December/584f6edd_data/data.zip)",
    ),
    "king-james": DatasetRecipe(
        image_shape=(1, SIDE, SIDE),
        targets={"fine": (NUM_CHARACTERS, ("next",))},
        files="verses.txt, one verse a line, such as 'Ge1:1 In the beginning …',",
        package="bible-kjv",
        printed_by=("bible", "-p", "/usr/lib", "-f", "gen1:1-rev22:21"),
    ),
}
"""Every data set by name."""
