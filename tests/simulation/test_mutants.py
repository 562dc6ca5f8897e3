"""Faults put into the server on purpose: the simulator finds each of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/secureafl")
MOST_SEEDS = 1000


class Edit(NamedTuple):
    """A file of the package, a piece of it, and what stands in its place."""

    file: str
    right: str
    wrong: str


MUTANTS: dict[str, list[Edit]] = {
    "a file is renamed before it is synced": [
        Edit("files.py", "        disk.sync(descriptor)\n    finally:", "    finally:"),
    ],
    "the head is not synced": [
        Edit("server/record/chain.py", "        self._disk.sync(self._descriptor)\n", ""),
    ],
    "nobody holds the folder": [
        Edit("files.py", "        while not _flock(self._file.fileno(), fcntl.LOCK_EX):", "        while False:"),
    ],
    "a failed write is swallowed": [
        Edit(
            "server/record/journal.py",
            "            raise self._failure from None\n",
            "            self._failure = None\n",
        ),
    ],
    "work is given out after a failed write": [  # two layers prevent it, and each suffices
        Edit("server/live/federation.py", "or error\n        self.stop()\n", "or error\n"),
        Edit(
            "server/record/journal.py", "        if self._failure is not None:\n            raise self._failure\n", ""
        ),
    ],
    "an arrival is acknowledged before it is committed": [
        Edit(
            "server/record/run.py",
            "params),\n            )\n",
            "params),\n            ),\n            durable=False,\n",
        ),
    ],
}


def copy_with(edits: list[Edit], folder: Path) -> Path:
    """The package with this fault."""
    copy = shutil.copytree(ROOT / SOURCE, folder / SOURCE, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits:
        text = (copy / edit.file).read_text()
        assert text.count(edit.right) == 1, "the mutant names a piece that is no longer there"
        (copy / edit.file).write_text(text.replace(edit.right, edit.wrong))
    return folder / SOURCE.parent


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_still_fits_the_code(name: str, tmp_path: Path) -> None:
    copy_with(MUTANTS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_finds_a_fault_within_a_thousand_seeds(name: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(copy_with(MUTANTS[name], tmp_path)), str(ROOT)])
    command = [sys.executable, "-m", "tests.simulation", "--seeds", f"0:{MOST_SEEDS}", "--stop"]
    run = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr or run.stdout
    found = re.search(r"^seed (\d+): (.*); again", run.stdout, re.MULTILINE)
    assert found is not None, run.stdout
    assert not found[2].startswith("raw ImportError")
