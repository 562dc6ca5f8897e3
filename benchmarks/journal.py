"""What durable journaling costs: updates per second through the machine with a full journal, against none.

    python benchmarks/journal.py [RUN_DIR]      # RUN_DIR: on the disk to measure; a temporary folder if not given

50 clients, 139,960 parameters, SecureAFL. Both take turns within one run, and the disk's own limit, writing and syncing
the same bytes, is measured beside them. Results go to results/journal.json.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _common import write
from rich.console import Console
from rich.table import Table

from secureafl import Machine, MachineSettings, SecureAFL
from secureafl.server.record.run import Run, StoreSettings

NUM_CLIENTS, DIM, SERVER_LR, SEED = 50, 139_960, 0.01, 0
WARM_UP, ROUNDS, ARRIVALS = 250, 8, 50


class Federation:
    """A run whose clients answer at once."""

    def __init__(self, run_dir: Path | None) -> None:
        machine = Machine(
            SecureAFL(DIM, server_lr=SERVER_LR), np.zeros(DIM, np.float32), MachineSettings(server_lr=SERVER_LR)
        )
        self.run = Run(machine, StoreSettings(run_dir=run_dir, snapshot_every=10**9))
        self._noise = np.random.default_rng(SEED).standard_normal((NUM_CLIENTS, DIM), np.float32)

    def advance(self, num_arrivals: int) -> float:
        """Seconds for so many arrivals."""
        begun = time.perf_counter()
        for _ in range(num_arrivals):
            version = self.run.machine.model.version
            client = (version * 7) % NUM_CLIENTS
            ticket = self.run.issue(f"client-{client}")
            self.run.receive(ticket.number, self.run.machine.model.params - 1 + self._noise[version % NUM_CLIENTS])
        return time.perf_counter() - begun


def synced_writes(directory: Path, num_writes: int) -> float:
    """Seconds to append and sync as many updates to a plain file."""
    payload = os.urandom(4 * DIM)
    begun = time.perf_counter()
    with (directory / "limit").open("wb") as file:
        for _ in range(num_writes):
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
    return time.perf_counter() - begun


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = Path(name)
        plain, journaled = Federation(None), Federation(directory / "run")
        times: dict[str, list[float]] = {"no journal": [], "full journal": [], "disk alone": []}
        for federation in (plain, journaled):
            federation.advance(WARM_UP)
        for _ in range(ROUNDS):
            times["no journal"].append(plain.advance(ARRIVALS))
            times["full journal"].append(journaled.advance(ARRIVALS))
            times["disk alone"].append(synced_writes(directory, ARRIVALS))
        journaled.run.close()
    best = {name: min(values) for name, values in times.items()}
    ratio = best["full journal"] / best["no journal"]
    table = Table(title=f"Journaling, n = {NUM_CLIENTS}, d = {DIM:,}: best of {ROUNDS} x {ARRIVALS} arrivals")
    for column in ("", "in units of no journal", "median"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in times.items():
        middle = statistics.median(values) / statistics.median(times["no journal"])
        table.add_row(name, f"{best[name] / best['no journal']:.2f}", f"{middle:.2f}")
    Console().print(table)
    write("journal", SEED, {"ratio": ratio, "seconds": times})


if __name__ == "__main__":
    main()
