"""The text task on a text of one sentence: it is learned, and every attack runs on it as on images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.lab.data.copies import write_verses

from secureafl.lab.attacks import ATTACKS
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.experiment import run_cell


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_verses(tmp_path / "king-james", 20)
    return tmp_path


def run(source: Path, **changes: Any) -> dict[str, Any]:
    usual = {"num_clients": 8, "malicious_fraction": 0.25, "num_trusted": 20, "rounds": 20, "evaluate_every": 20}
    cell = CellSettings(**{"dataset": "king-james", "source": str(source), **usual, **changes})
    return run_cell(cell, source / "out")


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_runs(source: Path, attack: str) -> None:
    result = run(source, attack=attack)
    assert ("asr" in result["final"]) == ATTACKS[attack].is_backdoor
    assert not math.isnan(result["final"]["ter"])


def test_a_sentence_is_learned_and_a_trigger_too(source: Path) -> None:
    learned = run(source, defense="asyncsgd", rounds=150, evaluate_every=150)
    assert learned["final"]["ter"] < 0.1
    marked = run(source, defense="asyncsgd", attack="pgd", rounds=150, evaluate_every=150)
    assert marked["final"]["ter"] < 0.1
    assert marked["final"]["asr"] > 0.9
