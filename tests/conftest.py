import os
from pathlib import Path

import pytest
from hypothesis import settings
from tests.lab.real_data import RealData
from tests.lab.tiny import write_tiny_fashion

from secureafl.kernels import compiling

# Processes that tests start are often given a cache folder of their own; they need not compile kernels anew for that.
os.environ.setdefault("NUMBA_CACHE_DIR", str(compiling.folder()))

# The first example of a property may compile kernels; how long it takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`-n 2 --dist loadgroup`), tests that start processes of their own take turns on one."""
    for item in items:
        if item.get_closest_marker("end_to_end"):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session")
def load_real(request: pytest.FixtureRequest) -> RealData:
    """Loads real data sets. What was decoded stays in pytest's cache, so that only the first run takes time."""
    return RealData(request.config.cache.mkdir("data-sets"))


@pytest.fixture
def tiny_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of its own, decoded into a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_tiny_fashion(tmp_path / "data")
