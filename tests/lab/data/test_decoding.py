from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.lab.data.copies import pixels, write_cifar100, write_drive, write_parquet

from secureafl.errors import DataError
from secureafl.lab.data import DATASETS, decoding
from secureafl.lab.data.decoding import decoded, is_test_frame
from secureafl.lab.data.loading import default_cache, load
from secureafl.lab.data.sources import ParquetDirectory

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_grey_images_in_a_coloured_set(tmp_path: Path) -> None:
    grey = pixels(1, 64, 64)
    write_parquet(tmp_path / "tiny-imagenet" / "train-00000-of-00001.parquet", grey, label=[199])
    write_parquet(tmp_path / "tiny-imagenet" / "validation-00000-of-00001.parquet", grey, label=[0])
    loaded = load("tiny-imagenet", tmp_path)
    np.testing.assert_array_equal(loaded.train_x[0], np.repeat(grey, 3, axis=0))


def test_a_drive_is_cropped_and_split_by_blocks_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "UDACITY_BLOCK", 2)
    steering = write_drive(tmp_path / "udacity", 11)
    loaded = load("udacity", tmp_path)
    assert loaded.num_classes is None
    assert loaded.train_y.dtype == np.float32
    np.testing.assert_array_equal(loaded.test_y, steering[8:10])
    np.testing.assert_array_equal(loaded.train_y, np.r_[steering[:8], steering[10:]])
    assert loaded.train_x.shape == (9, 3, 32, 64)
    assert loaded.train_x.min() == 255  # nothing but road is left


def test_blocks_of_time() -> None:
    assert np.flatnonzero(is_test_frame(2100)).tolist() == [*range(800, 1000), *range(1800, 2000)]


def test_the_second_time_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path / "cifar100")
    first = load("cifar100", tmp_path)
    monkeypatch.setattr(Image, "open", lambda _: pytest.fail("decoded again"))
    second = load("cifar100", tmp_path)
    np.testing.assert_array_equal(first.train_x, second.train_x)
    assert isinstance(second.train_x, np.memmap)
    assert not second.train_x.flags.writeable


def test_another_copy_is_decoded_anew(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar100")
    assert len(load("cifar100", tmp_path).train_x) == 2
    more = tmp_path / "cifar100" / "train-00002-of-00002.parquet"
    write_parquet(more, pixels(2, 32, 32, 3), label=[1, 2], coarse_label=[1, 2])
    assert len(load("cifar100", tmp_path).train_x) == 4


def test_a_failed_decoding_leaves_nothing_behind(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar100")
    write_parquet(
        tmp_path / "cifar100" / "train-00001-of-00002.parquet", pixels(1, 9, 9, 3), label=[1], coarse_label=[1]
    )
    with pytest.raises(DataError, match="9 x 9 pixels"):
        load("cifar100", tmp_path)
    assert list(default_cache().iterdir()) == []


def test_two_that_decode_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finishes second keeps the first one's arrays."""
    write_cifar100(tmp_path / "cifar100")
    rename = Path.rename

    def beaten(self: Path, target: Path) -> Path:
        target.mkdir()
        for file in self.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", beaten)
    assert len(load("cifar100", tmp_path).train_x) == 2
    assert len(list(default_cache().iterdir())) == 1


def test_a_copy_without_test_part(tmp_path: Path) -> None:
    write_parquet(tmp_path / "cifar10" / "train-0.parquet", pixels(1, 32, 32, 3), label=[1])
    with pytest.raises(DataError, match="no test part"):
        load("cifar10", tmp_path)


def test_a_copy_without_training_part(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test-0.parquet", pixels(1, 32, 32, 3), label=[1])
    with pytest.raises(DataError, match="no training part"):
        decoded("cifar10", DATASETS["cifar10"], ParquetDirectory(tmp_path, DATASETS["cifar10"]), default_cache())


def test_labels_beyond_the_classes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_parquet(tmp_path / "cifar10" / f"{part}-0.parquet", pixels(1, 32, 32, 3), label=[10])
    with pytest.raises(DataError, match="from 10 to 10; there are 10 classes"):
        load("cifar10", tmp_path)
