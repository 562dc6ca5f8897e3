"""Finds real data sets for tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secureafl.errors import DataError
from secureafl.lab.data import ENVIRONMENT_VARIABLE, Dataset, LabelKind, load
from secureafl.lab.data.loading import find_source

IN_THE_REPOSITORY = Path(__file__).parents[2] / "data"


class RealData:
    """Loads real data sets by name; a test is skipped only where no copy exists.

    Looks where SECUREAFL_DATA points, else in the repository's own folder `data`, which git ignores, and what Debian's
    packages hold. Never on the hub: tests need no network.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._directory = os.environ.get(ENVIRONMENT_VARIABLE, str(IN_THE_REPOSITORY))

    def __call__(self, name: str, labels: LabelKind = "fine") -> Dataset:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENVIRONMENT_VARIABLE, self._directory)
            try:
                find_source(name)
            except DataError as missing:
                pytest.skip(str(missing))
            return load(name, labels=labels, cache=self._cache)
