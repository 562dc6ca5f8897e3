from pathlib import Path

import pytest
from tests.lab.tiny import write_tiny_fashion


@pytest.fixture
def tiny_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of its own, decoded into a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_tiny_fashion(tmp_path / "data")
