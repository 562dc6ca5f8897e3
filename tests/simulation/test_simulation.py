"""Whole servers on a failing disk among failing clients, by seed. `python -m tests.simulation --seed N` repeats one."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation import __main__ as command
from tests.simulation.simulate import Report, simulate

QUICK, SLOW, CAMPAIGN = 25, 150, 10_000


def broken(first: int, end: int) -> dict[int, str]:
    """Promises that were broken, by seed."""
    reports = (simulate(seed) for seed in range(first, end))
    return {report.seed: report.broken for report in reports if report.broken}


def test_a_few_simulated_runs_keep_every_promise() -> None:
    assert broken(0, QUICK) == {}


@pytest.mark.slow
def test_many_simulated_runs_keep_every_promise() -> None:
    assert broken(QUICK, SLOW) == {}


@pytest.mark.campaign
def test_a_campaign_of_simulated_runs_keeps_every_promise() -> None:
    assert broken(SLOW, CAMPAIGN) == {}


@pytest.mark.parametrize("seed", [3, 6])
def test_a_seed_is_a_run(seed: int) -> None:
    one, two = simulate(seed), simulate(seed)
    assert (one.events, one.counts) == (two.events, two.counts)


def test_a_campaign_is_gone_on_with_and_says_which_seed_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pretended(seed: int) -> Report:
        ran.append(seed)
        return Report(seed, counts=Counter({"crash": 2}), broken="a row is lost" if seed == 7 else "")

    ran: list[int] = []
    monkeypatch.setattr(command, "simulate", pretended)
    monkeypatch.setattr(command, "PART", 3)
    summary = tmp_path / "summary.json"
    assert command.main(["--seeds", "0:5", "--summary", str(summary)]) == 0
    assert command.main(["--seeds", "2:9", "--summary", str(summary)]) == 1
    assert ran == list(range(9))
    assert "seed 7: a row is lost; again: python -m tests.simulation --seed 7" in capsys.readouterr().out
    found = json.loads(summary.read_text())
    assert (found["runs"], found["counts"], found["broken"]) == (9, {"crash": 18}, {"7": "a row is lost"})
    assert [part["seeds"] for part in found["parts"]] == [[0, 3], [3, 5], [5, 8], [8, 9]]


def test_faults_of_every_kind_come_up() -> None:
    counts = sum((simulate(seed).counts for seed in range(12)), start=type(simulate(0).counts)())
    kinds = {kind.split(" at ")[0] for kind in counts}
    assert {"crash", "ENOSPC", "EIO", "write lost or torn", "name lost", "second server"} <= kinds
    assert {"damage named", "damage harmless", "garbage", "forged", "sent twice", "late"} <= kinds
