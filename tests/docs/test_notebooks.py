"""The notebooks run as they stand, and show what they showed when they were committed."""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.lab.tiny import write_tiny_fashion

from secureafl.errors import DataError
from secureafl.lab.data.loading import find_source

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NAMES = ["1-stop-an-attack", "2-write-a-defense", "3-read-a-record"]
CPU_SECONDS = 60


def committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


def outputs(cell: Any) -> list[Any]:
    return list(cell.get("outputs", []))


def kinds(cell: Any) -> list[list[str]]:
    """Which forms each output has; text that a program printed may come in several pieces."""
    found = [sorted(output.get("data", {"text": ""})) for output in outputs(cell)]
    return [kind for place, kind in enumerate(found) if place == 0 or kind != ["text"] or found[place - 1] != ["text"]]


def test_all_notebooks_are_known() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_with_its_outputs_and_pictures(name: str) -> None:
    book = committed(name)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run it from the top"
    every = [output for cell in code for output in outputs(cell)]
    assert not [output for output in every if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in every)
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert len(text) < 500_000
    assert not re.search(r"/(tmp|home|root|work|Users)/", re.sub(r'"image/png": ".*?"', "", text)), (
        "a path of a machine"
    )
    for target in re.findall(r"\]\(((?!\w+:)[^)\s]+)\)", json.dumps([cell.source for cell in book.cells])):
        assert (FOLDER / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_the_same_kinds_of_things(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_source("fashion-mnist")
    except DataError:
        monkeypatch.setenv("SECUREAFL_DATA", str(write_tiny_fashion(tmp_path / "data")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    book, before = committed(name), committed(name)
    told = nbformat.v4.new_code_cell("import time; print(time.process_time())")  # type: ignore[no-untyped-call]
    book.cells.append(told)
    began = time.monotonic()
    NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert float(book.cells.pop().outputs[0].text) < CPU_SECONDS, f"slow: {time.monotonic() - began:.0f} s by the clock"
    for old, new in zip(before.cells, book.cells, strict=True):
        assert kinds(new) == kinds(old), old.source
