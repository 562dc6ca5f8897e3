"""Whole servers on a failing disk among failing clients, by seed. `python -m tests.simulation --seed N` repeats one."""

import pytest
from tests.simulation.simulate import simulate

QUICK, SLOW, CAMPAIGN = 25, 300, 10_000


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


def test_faults_of_every_kind_come_up() -> None:
    counts = sum((simulate(seed).counts for seed in range(12)), start=type(simulate(0).counts)())
    kinds = {kind.split(" at ")[0] for kind in counts}
    assert {"crash", "ENOSPC", "EIO", "write lost or torn", "name lost", "second server"} <= kinds
    assert {"damage named", "damage harmless", "garbage", "forged", "sent twice", "late"} <= kinds
