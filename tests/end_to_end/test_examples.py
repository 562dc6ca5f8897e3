"""The examples, unchanged, in simulation and in deployment."""

import filecmp
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.end_to_end.flower_processes import Config, Deployment, Simulation
from tests.end_to_end.journals import read_journal
from tests.end_to_end.nvflare_processes import simulate

from secureafl.server.record.entries import Event
from secureafl.types import NamedArrays

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart"


def last_columns(log: str) -> dict[str, tuple[float, float]]:
    """Scenario -> the last two columns of an example's closing table: in the quickstart, best and final accuracy."""
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
    found = last_columns(run.log_text())
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
    assert "secureafl" in last_columns(run.log_text())


@pytest.mark.end_to_end
def test_adapters_in_simulation_learn_under_attack(tmp_path: Path) -> None:
    """A base model this small learns no trigger in so few updates, from anyone: what is planted takes the full size."""
    plot = tmp_path / "adapters.png"
    config: Config = {
        "plot": str(plot),
        "scenarios": "secureafl attacked",
        "pretrain.steps": 100,
        "secureafl.stop-after-updates": 40,
        "secureafl.evaluate-every": 20,
    }
    with Simulation(tmp_path / "flower") as engine:
        run = engine.run(EXAMPLES / "adapters", config, num_supernodes=20, timeout=900.0)
    log = run.log_text()
    losses = {int(version): float(loss) for loss, version in re.findall(r"loss ([0-9.]+), .*\(version (\d+)\)", log)}
    assert losses[40] < losses[0]
    assert last_columns(log)["secureafl attacked"] == (losses[40], 0.0)
    assert "Federated: 9,216 values" in log
    assert plot.stat().st_size > 10_000


@pytest.mark.end_to_end
def test_stop_an_attack_draws_both_pictures(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "stop-an-attack" / "draw.py"), "--rounds", "120", "--runs", "runs"]
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
    config: Config = {"secureafl.min-nodes": 2, "secureafl.stop-after-updates": 4}
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


@pytest.mark.end_to_end
def test_regions_below_a_top_learn_and_reject_where_the_malicious_client_is(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = [sys.executable, str(EXAMPLES / "regions" / "run.py"), "--out", str(out)]
    done = subprocess.run([*command, "--reports", "4"], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "top: finished:completed" in done.stdout
    top = [row for row in read_journal(out / "top") if row.event is Event.ARRIVAL]
    assert len(top) == 4
    rejected = [row.reason for row in top if not row.accepted]
    assert rejected in ([], ["changed-too-abruptly"]), "the filter has at most two factors to compare with"
    assert len({row.client for row in top if row.accepted}) == 2
    malicious = re.search(r"SuperNode ID: (\d+)", (out / "node-client-0.log").read_text())
    assert malicious is not None
    rows = {name: read_journal(out / name) for name in ("region-0", "region-1")}
    for name, region in rows.items():
        followed = [row for row in region if row.client == "top" and row.event is Event.ARRIVAL]
        assert followed, f"{name} followed no model from above"
        assert {row.reason for row in followed} == {"from-above"}
    sent = [row for row in rows["region-0"] if row.client == malicious[1] and row.event is Event.ARRIVAL]
    assert {row.reason for row in sent if not row.accepted} == {"too-long"}
    heard = [row for row in rows["region-0"] if row.event is Event.ARRIVAL and row.client != "top"]
    third = next(place for place in range(len(heard)) if len({row.client for row in heard[: place + 1]}) == 3)
    late = [row for row in heard[third + 1 :] if row.client == malicious[1] and row is not sent[0]]
    assert late
    passed = [row for row in late if row.accepted]
    assert len(passed) <= 1, "the model learns fast: its second update may be long by less"
    honest = [row for row in rows["region-1"] if row.event is Event.ARRIVAL]
    assert sum(bool(row.accepted) for row in honest) > 0.8 * len(honest)
    reached = load_file(out / "top" / "model.safetensors")
    assert accuracy_of_blobs(reached) > 0.8  # it began at a third


def accuracy_of_blobs(weights: NamedArrays) -> float:
    """As the example's own server evaluates."""
    spec = importlib.util.spec_from_file_location("regions_task", EXAMPLES / "regions" / "regions" / "task.py")
    assert spec is not None
    assert spec.loader is not None
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    return float(task.accuracy(weights))
