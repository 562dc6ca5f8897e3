from __future__ import annotations

from pathlib import Path

import pytest

from secureafl.lab.data import ENVIRONMENT_VARIABLE, loading


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No copy anywhere, and an empty cache."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no program that prints a set
    monkeypatch.setattr(loading, "SYSTEM_DIRECTORY", str(tmp_path / "system"))
