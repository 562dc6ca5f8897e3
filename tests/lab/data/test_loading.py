from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.data.copies import pixels, write_cifar100, write_parquet

from secureafl.errors import DataError, SettingsError
from secureafl.lab.data import ENVIRONMENT_VARIABLE, loading
from secureafl.lab.data.loading import load

pytestmark = pytest.mark.usefixtures("nothing_installed")


def test_the_environment_variable_then_the_system_then_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loading.find_source("cifar100").identity() == "hub:uoft-cs/cifar100"
    write_cifar100(tmp_path / "system" / "cifar100")
    assert len(load("cifar100").train_x) == 2
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "mine"))
    assert len(load("cifar100").train_x) == 2
    write_parquet(tmp_path / "mine/cifar100/train-0.parquet", pixels(1, 32, 32, 3), label=[1], coarse_label=[1])
    write_parquet(tmp_path / "mine/cifar100/test-0.parquet", pixels(1, 32, 32, 3), label=[1], coarse_label=[1])
    assert len(load("cifar100").train_x) == 1


def test_a_named_directory_is_the_only_place_looked_at(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "system" / "cifar100")
    with pytest.raises(DataError) as error:
        load("cifar100", tmp_path / "empty")
    assert str(error.value) == (
        f"no copy of cifar100 in {tmp_path}/empty/cifar100; put train-*.parquet and test-*.parquet into "
        "<directory>/cifar100 and set source or SECUREAFL_DATA to <directory>, or "
        'set source to "hub", which downloads uoft-cs/cifar100 from the Hugging Face hub'
    )


def test_what_to_do_about_sets_with_ways_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"IDX files .* or install Debian's package dataset-fashion-mnist"):
        load("fashion-mnist", tmp_path)
    with pytest.raises(DataError, match=r"data\.zip"):
        load("udacity")
    with pytest.raises(DataError, match="udacity is not on the hub"):
        load("udacity", "hub")


def test_wrong_names_are_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'cifar10"):
        load("cifar-10", tmp_path)
    with pytest.raises(SettingsError, match="cifar10 has fine labels"):
        load("cifar10", tmp_path, "coarse")
