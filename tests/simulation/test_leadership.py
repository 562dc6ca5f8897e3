"""Servers that share a run, on a faulty network, by seed: `python -m tests.simulation.leadership --seed N` is one."""

import contextlib

import psycopg
import pytest
from tests.simulation.database import Connection
from tests.simulation.leadership import main, simulate

from secureafl.server.record import lease
from secureafl.server.record.lease import Database, Lease
from secureafl.server.record.postgres import PostgresTables

QUICK, SLOW = 20, 150
MOST_SEEDS = 40


def broken(first: int, end: int) -> dict[int, str]:
    reports = (simulate(seed) for seed in range(first, end))
    return {report.seed: report.broken for report in reports if report.broken}


def test_a_few_runs_keep_every_promise() -> None:
    assert broken(0, QUICK) == {}


@pytest.mark.slow
def test_many_runs_keep_every_promise() -> None:
    assert broken(QUICK, SLOW) == {}


def test_a_seed_is_a_run_with_faults_of_every_kind() -> None:
    one, two = simulate(0), simulate(0)
    assert (one.events, one.counts) == (two.events, two.counts)
    assert {"stopped", "killed", "cut off", "answer to a commit lost", "leaders", "rows"} <= set(one.counts)


def test_the_command_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "11"]) == 0
    assert "1 runs, 0 with a broken promise" in capsys.readouterr().out


def first_broken() -> str:
    return next((report.broken for report in map(simulate, range(MOST_SEEDS)) if report.broken), "")


def test_a_leader_that_trusts_its_lease_for_too_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "USABLE", 1.5)
    assert "two leaders at a time" in first_broken()


def test_a_missing_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the epoch nor the head before is compared."""
    run = Connection._run

    def unfenced(self: Connection, statement: str, values: list[object]) -> list[tuple[object, ...]]:
        if statement.startswith("WITH moved AS"):
            self._lock("head")
            assert self._own is not None
            self._own.head |= {"number": values[0], "hash": values[1]}
            return [(1, "")]
        return run(self, statement, values)

    monkeypatch.setattr(Connection, "_run", unfenced)
    monkeypatch.setattr(Lease, "require", lambda self: None)
    assert first_broken()


def test_a_lease_that_is_taken_before_its_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Lease, database: Database) -> tuple[int, float]:
        with database.transaction():
            return self._take(database)

    monkeypatch.setattr(Lease, "_wait", take)
    assert "was taken before its end" in first_broken()


def test_an_arrival_that_is_acknowledged_without_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send = PostgresTables._send

    def forgetful(self: PostgresTables, *arguments: object) -> None:
        with contextlib.suppress(psycopg.Error):
            send(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PostgresTables, "_send", forgetful)
    assert "acknowledged" in first_broken()
