import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secureafl.cli import app
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.data import DATASETS

runner = CliRunner()


def test_the_command_loads_no_extra() -> None:
    extras = ("torch", "ray", "matplotlib", "flwr", "nvflare", "uvicorn", "cryptography")
    code = f"import secureafl.cli, sys; print([name for name in {extras} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_the_help_names_every_data_set_and_attack() -> None:
    result = runner.invoke(app, ["lab", "run", "--help"], env={"COLUMNS": "200"})
    for name in (*DATASETS, *ATTACKS):
        assert name in result.output


def test_recipes_are_listed_with_their_cost() -> None:
    result = runner.invoke(app, ["lab", "sweep", "--list"])
    assert result.exit_code == 0
    assert "main-fashion-mnist" in result.output
    assert "2,500,000" in result.output  # ten defenses and the published algorithm, eleven attacks, and four new ones


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--attack", "scalin"], "did you mean 'scaling'?"),
        (["run", "--set", "rounds"], "write KEY=VALUE"),
        (["run", "--set", "defense_settings.percentil=0.6"], "did you mean 'percentile'?"),
        (["run", "--sink", "tensorbord:board"], "did you mean 'tensorboard'?"),
        (["run", "--sink", "wandb"], "write wandb:DIR"),
        (["run", "--device", "gpu"], "leave --device out"),
        (["sweep", "demo", "--device", "gpu"], "leave --device out"),
        (["sweep", "varients"], "did you mean 'variants'?"),
        (["sweep", "alpha", "--defense", "kardam"], "no cell of 'alpha' is left"),
        (["report", "demo", "--out", "nowhere"], "there is no sweep 'demo'"),
    ],
)
def test_a_mistake_costs_one_line(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["lab", *arguments])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.slow
def test_run_ends_with_a_table_and_a_picture(tiny_source: Path, tmp_path: Path) -> None:
    arguments = ["--source", str(tiny_source), "--architecture", "small-cnn", "--rounds", "20", "--out", str(tmp_path)]
    arguments += ["--attack", "scaling", "--set", "num_clients=8", "--set", "batch_size=4"]
    result = runner.invoke(app, ["lab", "run", *arguments])
    assert result.exit_code == 0, result.output
    assert "attack success rate" in result.output
    assert len(list(tmp_path.glob("cells/*/picture.png"))) == 1


def test_a_row_that_does_not_exist_leaves_nothing() -> None:
    result = runner.invoke(app, ["lab", "sweep", "delay", "--row", "7", "--attack", "none"])
    assert result.exit_code == 2
    assert "no cell of 'delay' is left" in result.output


def test_a_run_leaves_the_environment_as_it_was(tiny_source: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    arguments = ["lab", "run", "--rounds", "3", "--architecture", "small-cnn", "--source", str(tiny_source)]
    result = runner.invoke(app, [*arguments, "--set", "num_clients=4", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert dict(os.environ) == before
