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

AT_ONCE = """
import sys, time
import numpy as np
from numba.core.caching import IndexDataCacheFile
from secureafl.kernels.compiling import kernel

@kernel
def first(values):
    return values[0]

def read_slowly(cache, read=IndexDataCacheFile._load_index):
    found = read(cache)
    time.sleep(float(sys.argv[2]))
    return found

IndexDataCacheFile._load_index = read_slowly
print(first(np.ones(1, sys.argv[1])))
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


def test_processes_that_compile_one_kernel_for_two_types_at_once_keep_them_apart(tmp_path: Path) -> None:
    script = tmp_path / "at_once.py"
    script.write_text(AT_ONCE)
    env = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def first(seconds: float) -> list[str]:
        """What each of two processes prints, which read the index of what is compiled so slowly."""
        both = [
            subprocess.Popen(
                [sys.executable, str(script), kind, str(seconds)], env=env, stdout=subprocess.PIPE, text=True
            )
            for kind in ("float32", "int64")
        ]
        return [process.communicate(timeout=120)[0] for process in both]

    assert first(2.0) == ["1.0\n", "1\n"]
    [folder] = (tmp_path / "cache" / "secureafl" / "kernels").iterdir()
    assert len(list(folder.glob("*.nbc"))) == 2, "one file for each type"
    assert first(0.0) == ["1.0\n", "1\n"]
