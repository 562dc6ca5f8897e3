"""What durable journaling costs: arrivals per second with a run in memory, in a folder (SQLite), in PostgreSQL, and in
PostgreSQL with a standby.

    python benchmarks/journal.py [--quick]

50 clients, 139,960 parameters, the default defense, in turns within one run. Both databases sync every commit: SQLite
with `synchronous = FULL`, PostgreSQL with `fsync` and `synchronous_commit` on, in a cluster of its own beside the
folder; TMPDIR names the disk. Beside them: the disk's own limit, which is writing and syncing the same bytes, and the
two SHA-256 that a row holds, of the update and of the model. Compared are medians by the clock, and means of processor
time: of the server, and apart from it of PostgreSQL and the standby, which are processes of their own. The standby is
waited for after each of its turns, outside the time that is counted.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import ROOT, SECUREAFL, Table, in_turns, main, processor_seconds

sys.path.insert(0, str(ROOT))

from tests.postgres import PostgresServer, running

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.record.address import Place, store_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
NUM_CLIENTS, DIM = 50, 139_960
TURNS, ARRIVALS, WARM_UP = 16, 30, 250
QUICK_TURNS, QUICK_ARRIVALS, QUICK_WARM_UP = 2, 3, 5
PLAIN, STANDBY, CATCH_UP = "in memory", "PostgreSQL and a standby", "catching up"
LIMITS = ("the disk alone", "the SHA-256 alone")


class Federation:
    """A run whose clients answer at once."""

    def __init__(self, place: Place | None) -> None:
        settings = FederationSettings(
            run_dir=place, client_returns="gradient", server_lr=0.01, snapshot_every=10**9, lease_seconds=60.0
        )
        machine = Machine(settings.make_defense(DIM, seed=SEED), np.zeros(DIM, np.float32), settings.machine())
        self.run = Run(machine, settings, facts={**settings.facts(), "seed": SEED})
        self._noise = np.random.default_rng(SEED).standard_normal((NUM_CLIENTS, DIM), np.float32)

    def advance(self, num_arrivals: int) -> None:
        for _ in range(num_arrivals):
            version = self.run.machine.model.version
            ticket = self.run.issue(f"client-{(version * 7) % NUM_CLIENTS}")
            self.run.receive(ticket.number, self.run.machine.model.params - 1 + self._noise[version % NUM_CLIENTS])


class Standby:
    """`secureafl standby`, which checks only."""

    def __init__(self, federation: Federation, place: Place) -> None:
        self._federation, self._store = federation, store_of(place)
        self._process = subprocess.Popen([*SECUREAFL, "standby", str(place)], stdout=subprocess.DEVNULL)
        self.pid = self._process.pid

    def catch_up(self) -> None:
        """Return once it has repeated every row."""
        while not (reports := self._store.standbys()) or reports[0].number < self._federation.run.journal.head.number:
            if self._process.poll() is not None:
                raise RuntimeError("the standby has ended")
            time.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def synced_writes(directory: Path, num_writes: int) -> None:
    """Append and sync as many updates to a plain file."""
    payload = bytes(4 * DIM)
    with (directory / "limit").open("wb") as file:
        for _ in range(num_writes):
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())


def hashes(num_writes: int) -> None:
    """As many pairs of hashes as rows hold."""
    vector = np.zeros(DIM, np.float32)
    for _ in range(2 * num_writes):
        hashlib.sha256(vector.data).digest()


def measure(quick: bool) -> dict[str, Any]:
    turns, arrivals = (QUICK_TURNS, QUICK_ARRIVALS) if quick else (TURNS, ARRIVALS)
    with tempfile.TemporaryDirectory(prefix="secureafl-") as folder, running(fsync=True) as postgres:
        places: dict[str, Place | None] = {
            PLAIN: None,
            "folder (SQLite)": Path(folder) / "run",
            "PostgreSQL": postgres.url("alone"),
            STANDBY: postgres.url("followed"),
        }
        federations = {name: Federation(place) for name, place in places.items()}
        followed = places[STANDBY]
        assert followed is not None
        standby = Standby(federations[STANDBY], followed)
        try:
            for federation in federations.values():
                federation.advance(QUICK_WARM_UP if quick else WARM_UP)
            tasks: dict[str, Callable[[], object]] = {
                name: lambda federation=federation: federation.advance(arrivals)  # type: ignore[misc]
                for name, federation in federations.items()
            }
            tasks[CATCH_UP] = standby.catch_up
            tasks[LIMITS[0]] = lambda: synced_writes(Path(folder), arrivals)
            tasks[LIMITS[1]] = lambda: hashes(arrivals)
            spent = in_turns(tasks, turns, lambda: sum(map(processor_seconds, [standby.pid, *processes(postgres)])))
        finally:
            standby.close()
            for federation in federations.values():
                federation.run.close()
    behind = spent.pop(CATCH_UP)
    clock = {name: statistics.median(each.clock for each in times) / arrivals for name, times in spent.items()}
    own = {name: statistics.mean(each.processor for each in times) / arrivals for name, times in spent.items()}
    others = {name: statistics.mean(each.elsewhere for each in times) / arrivals for name, times in spent.items()}
    others[STANDBY] += statistics.mean(each.elsewhere for each in behind) / arrivals
    return {
        "clients": NUM_CLIENTS,
        "parameters": DIM,
        "turns": turns,
        "arrivals": arrivals,
        "cores": len(os.sched_getaffinity(0)),
        "arrivals_per_second": {name: 1.0 / seconds for name, seconds in clock.items()},
        "times_in_memory": {name: seconds / clock[PLAIN] for name, seconds in clock.items()},
        "processor_times_in_memory": {name: seconds / own[PLAIN] for name, seconds in own.items()},
        "processor_milliseconds": {name: 1e3 * seconds for name, seconds in own.items()},
        "elsewhere_milliseconds": {name: 1e3 * others[name] for name in places},
        "standby_behind_seconds": statistics.median(each.clock for each in behind),
    }


def processes(postgres: PostgresServer) -> list[int]:
    """PostgreSQL's server and those that it started."""
    return [postgres.pid, *map(int, Path(f"/proc/{postgres.pid}/task/{postgres.pid}/children").read_text().split())]


def tables(results: dict[str, Any]) -> list[Table]:
    ratios = ("time, times in memory", "processor time, times in memory", "database and standby, processor ms")
    rows = []
    for name, rate in results["arrivals_per_second"].items():
        elsewhere = results["elsewhere_milliseconds"].get(name, 0.0)
        times = (f"{results[kind][name]:.2f}" for kind in ("times_in_memory", "processor_times_in_memory"))
        rows.append((name, f"{rate:,.0f}", *times, f"{elsewhere:.1f}" if elsewhere else "-"))
    return [Table(("a run", "arrivals per second", *ratios), rows)]


def draw(results: dict[str, Any]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((9.6, 2.8), layout="constrained")
    rates, processor = figure.subplots(1, 2, sharey=True)
    names = list(results["arrivals_per_second"])
    bars = rates.barh(names, list(results["arrivals_per_second"].values()))
    rates.bar_label(bars, fmt="%.0f", padding=3)
    rates.invert_yaxis()
    rates.margins(x=0.15)
    rates.set(xlabel="arrivals per second")
    own = [results["processor_milliseconds"][name] for name in names]
    elsewhere = [results["elsewhere_milliseconds"].get(name, 0.0) for name in names]
    processor.barh(names, own, label="server")
    processor.barh(names, elsewhere, left=own, label="database and standby")
    processor.set(xlabel="processor time of an arrival, ms")
    processor.legend(fontsize="small")
    return figure, "Arrivals per second, and processor time of each, by where the run is kept; below, what limits them."


if __name__ == "__main__":
    main(__doc__, "journal", measure, tables, draw, seed=SEED)
