"""Kernels are compiled once per user, not once per environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from secureafl.kernels import compiling

USE = """
import numpy as np
from secureafl import kernels
print(kernels.dot(np.ones(3, np.float32), np.ones(3, np.float32)))
"""


def use(cache: Path, tmp_path: Path, **environment: str) -> str:
    """Run a kernel in a process of its own; returns what it logs."""
    clean = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env={**clean, "XDG_CACHE_HOME": str(cache), **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "3.0\n"
    return done.stderr


def test_a_second_process_finds_what_the_first_has_compiled(tmp_path: Path) -> None:
    assert "compiling kernels" in use(tmp_path / "cache", tmp_path)
    [folder] = (tmp_path / "cache" / "secureafl" / "kernels").iterdir()
    assert folder.name == compiling.fingerprint()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert use(tmp_path / "cache", tmp_path) == ""


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling.SharedFolder.from_function(use, __file__) is not None
    compiling.folder().chmod(0o777)
    assert compiling.SharedFolder.from_function(use, __file__) is None


def test_a_user_without_a_cache_folder_still_computes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    use(tmp_path / "file" / "below", tmp_path)


def test_the_name_of_the_folder_depends_on_every_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in Path(compiling.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    before = compiling.fingerprint.__wrapped__()
    assert before == compiling.fingerprint()
    (tmp_path / "simd.py").write_text("BLOCK = 64\n")
    assert compiling.fingerprint.__wrapped__() != before
