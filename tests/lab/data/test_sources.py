from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from tests.lab.data.copies import pixels, write_cifar100, write_idx, write_parquet, write_verses

from secureafl.errors import DataError
from secureafl.lab.data import decoding
from secureafl.lab.data.characters import NUM_CHARACTERS, as_bytes, classes_of
from secureafl.lab.data.loading import Dataset, find_source, load

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_parquet_shards_in_order_with_fine_and_coarse_labels(tmp_path: Path) -> None:
    images = write_cifar100(tmp_path / "cifar100").transpose(0, 3, 1, 2)
    fine, coarse = load("cifar100", tmp_path), load("cifar100", tmp_path, "coarse")
    np.testing.assert_array_equal(fine.train_x, images[:2])
    np.testing.assert_array_equal(fine.test_x, images[2:])
    assert (fine.train_y.tolist(), fine.test_y.tolist(), fine.num_classes) == ([7, 99], [0], 100)
    assert (coarse.train_y.tolist(), coarse.test_y.tolist(), coarse.num_classes) == ([1, 19], [4], 20)
    assert fine.train_y.dtype == np.int64
    assert fine.image_shape == (3, 32, 32)


def test_columns_and_directories_named_as_on_the_hub(tmp_path: Path) -> None:
    deep = tmp_path / "cifar100" / "cifar100"
    for split, label in (("train", 5), ("test", 6)):
        file = deep / f"{split}-00000-of-00001.parquet"
        write_parquet(file, pixels(1, 32, 32, 3), image_column="img", fine_label=[label], coarse_label=[0])
    assert load("cifar100", tmp_path).test_y.tolist() == [6]


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    images = pixels(3, 28, 28)
    write_idx(tmp_path / "fashion-mnist", images[:2], [9, 0], "train", packed=packed)
    write_idx(tmp_path / "fashion-mnist", images[2:], [3], "t10k", packed=packed)
    loaded = load("fashion-mnist", tmp_path)
    np.testing.assert_array_equal(loaded.train_x, images[:2, None])
    np.testing.assert_array_equal(loaded.test_x, images[2:, None])
    assert (loaded.train_y.tolist(), loaded.test_y.tolist()) == ([9, 0], [3])


@pytest.mark.parametrize("data", [b"PK", b"\0\0\x08\x01\0\0\0\x05abc"])
def test_broken_idx_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "fashion-mnist").mkdir()
    for kind in ("images-idx3", "labels-idx1"):
        (tmp_path / "fashion-mnist" / f"train-{kind}-ubyte").write_bytes(data)
    with pytest.raises(DataError, match=r"IDX|cut short"):
        load("fashion-mnist", tmp_path)


def test_udacitys_own_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "UDACITY_BLOCK", 1)
    directory = tmp_path / "udacity"
    (directory / "IMG").mkdir(parents=True)
    rows = ["center,left,right,steering,throttle,brake,speed"]
    for number in range(5):
        rows.append(f"C:\\recorded\\IMG\\center_{number}.png, IMG/left.png, IMG/right.png, {number / 4}, 0, 0, 30")
        Image.new("RGB", (320, 160), (number, 0, 0)).save(directory / "IMG" / f"center_{number}.png")
    (directory / "driving_log.csv").write_text("\n".join(rows) + "\n")
    loaded = load("udacity", tmp_path)
    assert (loaded.train_y.tolist(), loaded.test_y.tolist()) == ([0, 0.25, 0.5, 0.75], [1])
    assert (loaded.train_x[:, 0, 0, 0].tolist(), loaded.test_x[:, 0, 0, 0].tolist()) == ([0, 1, 2, 3], [4])


def test_verses_by_chapters(tmp_path: Path) -> None:
    write_verses(tmp_path / "king-james", 11, "{chapter} and so it went")
    loaded = load("king-james", tmp_path)
    letters = {split: set((x // (255 / NUM_CHARACTERS)).astype(int).flat) for split, x in parts(loaded).items()}
    words = set(classes_of("and so it went"))
    assert letters["test"] - words == set(classes_of("ej")) - words  # the fifth and the tenth chapter
    assert letters["train"] - words == set(classes_of("abcdfghik")) - words
    first = "aaaa and so it went aaaa and so it went aaaa and so it went bbbb and"
    np.testing.assert_array_equal(loaded.train_x[0].reshape(-1), as_bytes(classes_of(first[:64])))
    assert loaded.train_y[0] == classes_of(first[64])
    assert (loaded.num_classes, loaded.image_shape) == (28, (1, 8, 8))


def parts(loaded: Dataset) -> dict[str, npt.NDArray[np.uint8]]:
    return {"train": loaded.train_x, "test": loaded.test_x}


def test_verses_that_a_program_prints(tmp_path: Path) -> None:
    write_verses(tmp_path / "king-james", 5)
    verses = tmp_path / "king-james" / "verses.txt"
    with pytest.raises(DataError, match=r"verses\.txt, .* install Debian's package bible-kjv"):
        load("king-james")
    program = tmp_path / "bin" / "bible"
    write_program(program, f"exec /bin/cat {verses}")
    printed, read = load("king-james"), load("king-james", tmp_path)
    np.testing.assert_array_equal(printed.train_x, read.train_x)
    assert find_source("king-james").identity() == find_source("king-james", tmp_path).identity()
    with pytest.raises(DataError, match="no copy of king-james"):  # a named directory is the only place looked at
        load("king-james", tmp_path / "empty")
    write_program(program, "echo no data file >&2; exit 3")
    with pytest.raises(DataError, match=r"bible .* gen1:1-rev22:21 ended with 3: no data file"):
        load("king-james")


def write_program(file: Path, line: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)


def test_a_line_that_is_no_verse(tmp_path: Path) -> None:
    write_verses(tmp_path / "king-james", 5)
    with (tmp_path / "king-james" / "verses.txt").open("a") as file:
        file.write("THE END\n")
    with pytest.raises(DataError, match=r"line 16 of .*verses\.txt is 'THE END', not 'Ge1:1"):
        load("king-james", tmp_path)


class FakeHub:
    """What `datasets.load_dataset` returns, as far as it is used."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def select_columns(self, names: list[str]) -> list[dict[str, Any]]:
        return [{names[0]: value} for value in self.columns[names[0]]]


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.fromarray(pixels(1, 32, 32, 3)[0])
    parts = {
        "train": FakeHub(img=[image, image], fine_label=[1, 2], coarse_label=[3, 4]),
        "test": FakeHub(img=[image], fine_label=[5], coarse_label=[6]),
    }
    asked: list[str] = []

    class Module:
        @staticmethod
        def load_dataset(repository: str) -> dict[str, FakeHub]:
            asked.append(repository)
            return parts

    monkeypatch.setitem(sys.modules, "datasets", Module)
    loaded = load("cifar100", "hub", "coarse")
    assert set(asked) == {"uoft-cs/cifar100"}
    assert (loaded.train_y.tolist(), loaded.test_y.tolist()) == ([3, 4], [6])
    asked.clear()
    load("cifar100", "hub")
    assert asked == []  # decoded before: the hub is not even asked


def test_a_copy_without_the_labels(tmp_path: Path) -> None:
    write_parquet(tmp_path / "cifar10" / "train-0.parquet", pixels(1, 32, 32, 3), target=[1])
    with pytest.raises(DataError, match="has the columns image, target, but none called label"):
        load("cifar10", tmp_path)
