"""What a run in PostgreSQL with one standby costs, against one in a folder (SQLite): arrivals per second.

    python benchmarks/standby.py [--quick]

50 clients, 139,960 parameters, the default defense. Folder, PostgreSQL alone, and PostgreSQL with a standby take turns
within one run, in blocks of arrivals; medians over blocks are compared. Both databases sync every commit: SQLite with
`synchronous = FULL`, PostgreSQL with `fsync` and `synchronous_commit` on, in a cluster of its own beside the folder.
The standby is a process of its own, as is PostgreSQL; on a machine with few cores all of them share. After each block
the standby is waited for, outside the time that is counted, and how long that takes is kept: what it is behind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import ROOT, write
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(ROOT))

from tests.postgres import PostgresServer, running

from secureafl import Machine, MachineSettings
from secureafl.defenses import build_defense
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.run import Run, StoreSettings

NUM_CLIENTS, DIM, SERVER_LR, SEED = 50, 139_960, 0.01, 0
BAR = 0.7
FACTS: dict[str, object] = {
    "defense": "secureafl",
    "defense_settings": {},
    "server_lr": SERVER_LR,
    "max_staleness": None,
    "average_over": 200,
    "seed": SEED,
}


class Federation:
    """A run whose clients answer at once."""

    def __init__(self, place: Place) -> None:
        defense = build_defense("secureafl", DIM, {}, server_lr=SERVER_LR, seed=SEED)
        machine = Machine(defense, np.zeros(DIM, np.float32), MachineSettings(server_lr=SERVER_LR))
        self.run = Run(machine, StoreSettings(run_dir=place, snapshot_every=10**9, lease_seconds=60.0), facts=FACTS)
        self._noise = np.random.default_rng(SEED).standard_normal((NUM_CLIENTS, DIM), np.float32)

    def advance(self, num_arrivals: int) -> float:
        """Arrivals per second, of so many."""
        began = time.perf_counter()
        for _ in range(num_arrivals):
            version = self.run.machine.model.version
            ticket = self.run.issue(f"client-{(version * 7) % NUM_CLIENTS}")
            self.run.receive(ticket.number, self.run.machine.model.params - 1 + self._noise[version % NUM_CLIENTS])
        return num_arrivals / (time.perf_counter() - began)


class StandbyProcess:
    """`secureafl standby`, which checks only."""

    def __init__(self, federation: Federation, place: Place) -> None:
        self._federation, self._store = federation, store_of(place)
        command = [sys.executable, "-c", "from secureafl.cli import app; app()", "standby", str(place)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})

    def wait(self) -> float:
        """Seconds until it has repeated every row."""
        began = time.perf_counter()
        while True:
            reports = self._store.standbys()
            if reports and reports[0].number == self._federation.run.journal.head.number:
                return time.perf_counter() - began
            if self._process.poll() is not None:
                raise RuntimeError("the standby has ended")
            time.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(postgres: PostgresServer, folder: Path, blocks: int, arrivals: int) -> dict[str, Any]:
    places: dict[str, Place] = {
        "folder": folder / "run",
        "postgresql": postgres.url("alone"),
        "postgresql and a standby": postgres.url("followed"),
    }
    federations = {name: Federation(place) for name, place in places.items()}
    standby = StandbyProcess(federations["postgresql and a standby"], places["postgresql and a standby"])
    rates: dict[str, list[float]] = {name: [] for name in federations}
    behind: list[float] = []
    for federation in federations.values():
        federation.advance(2 * NUM_CLIENTS)
    standby.wait()
    for _ in range(blocks):
        for name, federation in federations.items():
            rates[name].append(federation.advance(arrivals))
        behind.append(standby.wait())
    standby.close()
    for federation in federations.values():
        federation.run.close()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "clients": NUM_CLIENTS,
        "parameters": DIM,
        "arrivals per block": arrivals,
        "blocks": blocks,
        "cores": len(os.sched_getaffinity(0)),
        "of the folder's arrivals per second": {
            name: round(rate / medians["folder"], 3) for name, rate in medians.items()
        },
        "standby is done after its block, in blocks": round(
            statistics.median(behind) / (arrivals / medians["postgresql and a standby"]), 2
        ),
        "bar": BAR,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="secureafl-") as folder, running(fsync=True) as postgres:
        found = measure(postgres, Path(folder), *((3, 20) if quick else (9, 30)))
    table = Table("", "of the folder's arrivals per second", title=f"{DIM:,} parameters, {NUM_CLIENTS} clients")
    for name, share in found["of the folder's arrivals per second"].items():
        table.add_row(name, f"{share:.2f}")
    Console().print(table)
    if not quick:
        Console().print(f"written to {write('standby', SEED, found)}")


if __name__ == "__main__":
    main()
