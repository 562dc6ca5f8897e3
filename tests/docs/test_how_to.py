"""The how-tos' examples, as they stand on the pages."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.lab.tiny import tiny_cell, write_tiny_fashion

from secureafl.defenses import DEFENSES
from secureafl.defenses import Entry as DefenseEntry
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.attacks import Entry as AttackEntry
from secureafl.lab.cell import CellSettings
from secureafl.lab.data import DATASETS
from secureafl.lab.experiment import run_cell

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def names_on(page: str) -> dict[str, Any]:
    """What the page's Python blocks define, taken together."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL))
    code = code.replace("from __future__ import annotations\n", "")
    names: dict[str, Any] = {"__name__": "how_to"}
    exec(compile("from __future__ import annotations\n" + code, page, "exec"), names)
    return names


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_tiny_fashion(tmp_path / "data")


def test_add_a_defense(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_on("add-a-defense.md")
    monkeypatch.setitem(DEFENSES, "norm_gate", DefenseEntry(names["NormGate"], names["NormGateSettings"]))
    result = run_cell(tiny_cell(source, defense="norm_gate", attack="gaussian"), tmp_path / "out")
    assert result["detection"]["recall"] == 1.0
    assert result["reasons"]["malicious"]["too-long"] > 0


def test_add_an_attack(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_on("add-an-attack.md")
    monkeypatch.setitem(ATTACKS, "mirror", AttackEntry(names["Mirror"], names["MirrorSettings"]))
    plain = run_cell(tiny_cell(source, defense="asyncsgd"), tmp_path / "out")
    attacked = run_cell(tiny_cell(source, defense="asyncsgd", attack="mirror"), tmp_path / "out")
    assert attacked["digests"]["arrivals"] == plain["digests"]["arrivals"]
    assert attacked["digests"]["model"] != plain["digests"]["model"]


def test_add_a_data_set(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_on("add-a-data-set.md")
    names["write_shapes"](source)
    monkeypatch.setitem(DATASETS, "shapes", names["shapes"])
    cell = CellSettings(
        dataset="shapes", source=str(source), architecture="small-cnn", num_clients=4, batch_size=16, rounds=400,
        defense="asyncsgd", server_lr=0.03, partition="iid", evaluate_every=100,
    )  # fmt: skip
    assert run_cell(cell, tmp_path / "out")["final"]["ter"] < 0.2
