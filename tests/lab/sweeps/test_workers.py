"""Workers are real processes here: what happens to one of them, and to a cell in it, is no other cell's concern."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.tiny import tiny_cell

from secureafl.lab.cells.experiment import CellStatus, RunSettings
from secureafl.lab.sweeps.workers import run_cells

FAILING = """
import os

from secureafl.defenses import AsyncSGD


class Raises(AsyncSGD):
    def step(self, update, model):
        raise ZeroDivisionError("in my own code")


class Ends(AsyncSGD):
    def step(self, update, model):
        os._exit(3)
"""


class Heard:
    """What an observer is told."""

    def __init__(self) -> None:
        self.finished_cells: list[str] = []

    def advanced(self, key: str, status: CellStatus) -> None:
        assert status.done <= status.rounds

    def finished(self, key: str, failure: str | None) -> None:
        self.finished_cells.append(key)


@pytest.mark.slow
def test_a_cell_that_fails_and_a_process_that_ends_cost_no_other_cell(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("failing:Ends", "failing:Raises", "asyncsgd", "kardam", "fedbuff")
    cells = {cell.cell_id(): cell for cell in (tiny_cell(tiny_source, defense=name) for name in names)}
    ends, raises, *others = cells
    store, heard = tmp_path / "cells", Heard()
    store.mkdir()
    failures = run_cells(cells, store, jobs=2, run=RunSettings(), observer=heard)
    assert failures.keys() == {ends, raises}
    assert "ended abruptly" in failures[ends]
    assert "in step" in failures[raises], "where in the user's code"
    assert "ZeroDivisionError: in my own code" in failures[raises]
    assert sorted(heard.finished_cells) == sorted(cells)
    assert all((store / key / "result.json").exists() for key in others)
