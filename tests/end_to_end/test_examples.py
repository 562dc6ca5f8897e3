"""The examples, unchanged, in simulation and in deployment."""

import filecmp
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.end_to_end.flower_processes import Config, Deployment, Simulation
from tests.end_to_end.nvflare_processes import simulate

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart"


def accuracies(log: str) -> dict[str, tuple[float, float]]:
    """Scenario -> best and final accuracy, from the quickstart's closing table."""
    rows = re.findall(r"│ ((?:asyncsgd|secureafl)[a-z ]*?) +│.*│ +([0-9.]+) │ +([0-9.]+) │", log)
    return {name.strip(): (float(best), float(final)) for name, best, final in rows}


@pytest.mark.end_to_end
def test_quickstart_in_simulation_stops_the_attack(tmp_path: Path) -> None:
    plot = tmp_path / "accuracy.png"
    config: Config = {
        "plot": str(plot),
        "scenarios": "asyncsgd attacked, secureafl attacked",
        "secureafl.stop-after-updates": 150,
    }
    with Simulation(tmp_path / "flower") as engine:
        run = engine.run(QUICKSTART, config, num_supernodes=20, timeout=900.0)
    found = accuracies(run.log_text())
    assert found["asyncsgd attacked"][1] < 0.3
    assert found["secureafl attacked"][0] > 0.5
    assert plot.stat().st_size > 10_000


@pytest.mark.campaign
def test_quickstart_in_deployment(tmp_path: Path) -> None:
    config: Config = {
        "scenarios": "secureafl",
        "plot": str(tmp_path / "accuracy.png"),
        "secureafl.min-nodes": 2,
        "secureafl.stop-after-updates": 4,
    }
    with Deployment(tmp_path / "flower") as engine:
        engine.start_nodes({0: {"partition-id": 0, "num-partitions": 2}, 1: {"partition-id": 1, "num-partitions": 2}})
        run = engine.run(QUICKSTART, config, timeout=300.0)
    assert "secureafl" in accuracies(run.log_text())


@pytest.mark.end_to_end
def test_stop_an_attack_draws_both_pictures(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "stop-an-attack" / "draw.py"), "--rounds", "200", "--runs", "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    ends = {
        name: float(share) for name, share in re.findall(r"^(.+): ([0-9.]+)% of the test images", done.stdout, re.M)
    }
    assert ends["SecureAFL, attacked"] > 20.0 > 15.0 > ends["AsyncSGD, attacked"]
    for theme in ("light", "dark"):
        assert 10_000 < (tmp_path / f"attack-{theme}.png").stat().st_size < 200_000


def test_bring_your_own_keeps_client_and_task_byte_for_byte() -> None:
    for name in ("client_app.py", "task.py"):
        before, after = (EXAMPLES / "bring-your-own" / side / "blobs" / name for side in ("before", "after"))
        assert filecmp.cmp(before, after, shallow=False)


@pytest.mark.end_to_end
def test_bring_your_own_in_deployment(tmp_path: Path) -> None:
    config: Config = {"secureafl.min-nodes": 2, "secureafl.stop-after-updates": 6}
    with Deployment(tmp_path / "flower") as engine:
        engine.start_nodes({0: {"partition-id": 0, "num-partitions": 2}, 1: {"partition-id": 1, "num-partitions": 2}})
        engine.run(EXAMPLES / "bring-your-own" / "after", config, timeout=300.0)


@pytest.mark.end_to_end
def test_two_engines_learn_from_one_task_file(tmp_path: Path) -> None:
    example = EXAMPLES / "two-engines"
    with Simulation(tmp_path / "flower") as engine:
        run = engine.run(example, {"secureafl.stop-after-updates": 40}, num_supernodes=4, timeout=300.0)
    log = simulate(example / "nvflare_job.py", tmp_path / "nvflare", ["--updates", "40"], timeout=300.0)
    for text in (run.log_text(), log):
        assert "secureafl: 40 updates" in text
        assert float(re.findall(r"accuracy ([0-9.]+) \(version 40\)", text)[-1]) > 0.5
