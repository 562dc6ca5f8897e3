"""The how-tos' examples, as they stand on the pages."""

import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import follow, save_files
from tests.lab.tiny import tiny_cell, write_tiny_fashion

from secureafl import lab
from secureafl.lab.cells.build import deal
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.experiment import run_cell
from secureafl.lab.data import DATASETS, load
from secureafl.lab.sweeps.naming import row_of
from secureafl.lab.sweeps.sweep_files import find_sweep

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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder whose modules can be imported."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.syspath_prepend(place)
    return place


def test_add_a_defense(source: Path, here: Path, tmp_path: Path) -> None:
    save_files(PAGES / "add-a-defense.md", here)
    importlib.import_module("test_norm_gate").test_contract()
    result = run_cell(tiny_cell(source, defense="norm_gate:NormGate", attack="gaussian"), tmp_path / "out")
    assert result["settings"]["defense"] == "norm_gate:NormGate"
    assert result["detection"]["recall"] == 1.0
    assert result["reasons"]["malicious"]["too-long"] > 0


def test_swap_a_stage(tmp_path: Path) -> None:
    follow(PAGES / "swap-a-stage.md", tmp_path)


def test_prepare_a_model(tmp_path: Path) -> None:
    follow(PAGES / "prepare-a-model.md", tmp_path)


def test_federate_adapters(tmp_path: Path) -> None:
    follow(PAGES / "federate-adapters.md", tmp_path)


def test_add_an_attack(source: Path, here: Path, tmp_path: Path) -> None:
    save_files(PAGES / "add-an-attack.md", here)
    importlib.import_module("test_mirror").test_contract()
    plain = run_cell(tiny_cell(source, defense="asyncsgd"), tmp_path / "out")
    attacked = run_cell(tiny_cell(source, defense="asyncsgd", attack="mirror:Mirror"), tmp_path / "out")
    assert attacked["digests"]["arrivals"] == plain["digests"]["arrivals"]
    assert attacked["digests"]["model"] != plain["digests"]["model"]


def test_run_experiments(source: Path, here: Path) -> None:
    save_files(PAGES / "run-experiments.md", here)
    recipe = find_sweep(str(here / "limits.toml"))[1]
    rows = [row_of(recipe, cell.complete()) for cell in recipe.cells()]
    assert rows == ["secureafl, percentile=0.5", "secureafl, percentile=0.8"] * 3
    rivals = find_sweep(str(here / "rivals.toml"))[1].cells()
    assert [(cell.defense, cell.attack, cell.rounds) for cell in rivals] == [
        *(("secureafl", "none", 2000), ("secureafl", "sign_flip", 2000)),
        *(("kardam", "none", 2000), ("kardam", "sign_flip", 2000)),
    ]
    cell = tiny_cell(source, partition="dealing:by_label")
    dataset = load(cell.dataset, cell.source, cell.labels)
    shares = [set(dataset.train_y[rows].tolist()) for rows in deal(cell, dataset)]
    assert max(map(len, shares)) <= 3  # of ten classes


def test_add_a_data_set(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_on("add-a-data-set.md")
    names["write_shapes"](source)
    monkeypatch.setitem(DATASETS, "shapes", names["shapes"])
    cell = CellSettings(
        dataset="shapes", source=str(source), architecture="small-cnn", num_clients=4, batch_size=16, rounds=400,
        defense="asyncsgd", server_lr=0.03, partition="iid", evaluate_every=100,
    )  # fmt: skip
    assert run_cell(cell, tmp_path / "out")["final"]["ter"] < 0.2


@pytest.mark.slow
def test_experiments_in_python(tmp_path: Path) -> None:
    env = {**os.environ, "SECUREAFL_DATA": str(write_tiny_fashion(tmp_path / "data"))}
    (output,) = follow(PAGES / "experiments-in-python.md", tmp_path, env)
    assert "<Results of 6 cells>" in output
    assert "NormGate, No attack: ter 0." in output
    assert (tmp_path / "here" / "results" / "lab" / "gate-report" / "index.html").exists()


def test_every_metric_is_on_the_page(tiny_source: Path, tmp_path: Path) -> None:
    cell = lab.run(tiny_cell(tiny_source, attack="scaling"), out=tmp_path)
    text = (PAGES.parent / "reference" / "api" / "lab.md").read_text()
    assert [name for name in cell.metrics if f"`{name.replace('newest_asr', 'newest_ter')}`" not in text] == [
        "newest_worst_recall"
    ]


@pytest.mark.end_to_end
def test_resume(tmp_path: Path) -> None:
    follow(PAGES / "resume.md", tmp_path)


@pytest.mark.end_to_end
def test_deploy_makes_certificates_and_keys_that_fit(tmp_path: Path) -> None:
    outputs = follow(PAGES / "deploy.md", tmp_path)
    here = tmp_path / "here"
    verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", "fl.example.org", "server.pem"]
    assert subprocess.run(verify, cwd=here, capture_output=True, text=True).stdout == "server.pem: OK\n"
    assert (here / "node.key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (here / "signing.pem").exists()
    assert len(outputs[-1].strip()) == 44  # base64 of 32 bytes
