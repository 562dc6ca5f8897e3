"""Damaged copies of a run whose server was killed: whoever reads one gets what was there before, or is told."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.simulation.ledger import state_of
from tests.simulation.simulate import damaged
from tests.support import Quadratic

from secureafl import Machine, MachineSettings
from secureafl.errors import StoreError
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun

QUICK, CAMPAIGN = 60, 1000
PROBLEM = Quadratic(num_clients=4, dim=8)
FACTS: dict[str, object] = {
    "defense": "secureafl",
    "defense_settings": {},
    "server_lr": 0.05,
    "max_staleness": None,
    "average_over": 200,
    "seed": 0,
}
Told = dict[str, object]


def machine() -> Machine:
    return Machine(PROBLEM.defense("secureafl"), np.zeros(PROBLEM.dim, np.float32), MachineSettings(server_lr=0.05))


def settings(run_dir: Path, keep_rows: int | None) -> StoreSettings:
    return StoreSettings(run_dir=run_dir, snapshot_every=10, keep_rows=keep_rows)


def record(folder: Path, keep_rows: int | None) -> Path:
    """A run as a killed server leaves it: the newest rows are in SQLite's write-ahead log alone."""
    run = Run(machine(), settings(folder / "live", keep_rows), facts=FACTS, clock=lambda: 1.0)
    for number in range(35):
        rng = np.random.default_rng(number)
        client = int(rng.integers(PROBLEM.num_clients))
        ticket = run.issue(f"client-{client}")
        run.receive(ticket.number, PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng))
        if number == 25:
            run.journal._tables.settle()
        if number % 9 == 4:
            run.withdraw(run.issue("slow").number, Event.EXPIRED, "too slow")
    killed = folder / "killed"
    shutil.copytree(folder / "live", killed)
    run.close()
    return killed


def resume(run_dir: Path, keep_rows: int | None) -> Told:
    run = Run.resume(machine(), settings(run_dir, keep_rows), facts=FACTS)
    told: Told = {**state_of(run.machine)}
    run.close()
    return told


def audit(run_dir: Path, keep_rows: int | None) -> Told:
    run = RecordedRun.open(run_dir)
    try:
        clients = [record.summary() for record in client_records(run)]
        return {"clients": clients, "facts": run.facts, "first": run.first.tobytes()}
    finally:
        run.journal.close()


def without_influence(told: Told) -> Told:
    """A snapshot that cannot be read is passed over there, as one that was removed is."""
    clients = told.get("clients", [])
    assert isinstance(clients, list)
    return {**told, "clients": [{**client, "influence": None} for client in clients]}


READERS: dict[str, Callable[[Path, int | None], Told]] = {"resume": resume, "audit": audit}


EXPECTABLE = {f"{name} {found}" for name in READERS for found in ("named", "harmless")}


def outcome(reader: str, copy: Path, keep_rows: int | None, expected: Told, victim: Path) -> str:
    try:
        told = READERS[reader](copy, keep_rows)
    except StoreError as error:
        return "named" if "\n" not in str(error) else f"not one line: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"
    if victim.name.startswith("0"):
        told, expected = without_influence(told), without_influence(expected)
    return "harmless" if told == expected else f"unnoticed in {[key for key in told if told[key] != expected.get(key)]}"


def damage_copies(folder: Path, keep_rows: int | None, num_copies: int) -> Counter[str]:
    """What came of it, by reader and outcome; what should not be names its number and file."""
    killed, counts = record(folder, keep_rows), Counter[str]()
    expected = {}
    for name, reader in READERS.items():
        expected[name] = reader(Path(shutil.copytree(killed, folder / name)), keep_rows)
    victims = sorted(path.relative_to(killed) for path in killed.rglob("*") if path.is_file())
    victims = [path for path in victims if path.name not in {"lock", "run.db-shm"}]
    assert Path("run.db-wal") in victims
    for number in range(num_copies):
        rng = np.random.default_rng(number)
        victim = victims[int(rng.integers(len(victims)))]
        content = damaged((killed / victim).read_bytes(), rng)
        for name in READERS:
            copy = folder / "copy"
            shutil.copytree(killed, copy)
            (copy / "run.db-shm").unlink(missing_ok=True)
            (copy / victim).write_bytes(content)
            found = outcome(name, copy, keep_rows, expected[name], victim)
            kind = f"{name} {found}"
            counts[kind if kind in EXPECTABLE else f"copy {number}, {victim}: {kind}"] += 1
            shutil.rmtree(copy)
    return counts


def check(counts: Counter[str]) -> None:
    assert [found for found in counts if found not in EXPECTABLE] == []
    assert set(counts) == EXPECTABLE, "every outcome comes up"


@pytest.mark.parametrize("keep_rows", [None, 10])
def test_damage_is_named_or_does_no_harm(keep_rows: int | None, tmp_path: Path) -> None:
    check(damage_copies(tmp_path, keep_rows, QUICK // 2))


@pytest.mark.campaign
@pytest.mark.parametrize("keep_rows", [None, 10])
def test_a_campaign_of_damage_is_named_or_does_no_harm(keep_rows: int | None, tmp_path: Path) -> None:
    check(damage_copies(tmp_path, keep_rows, CAMPAIGN // 2))
