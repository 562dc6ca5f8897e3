"""What durable journaling costs: updates per second through the machine with a full journal, against none.

    python benchmarks/journal.py [RUN_DIR]      # RUN_DIR: on the disk to measure; a temporary folder if not given

50 clients, 139,960 parameters, SecureAFL. Both take turns within one run. Beside them: the disk's own limit, which is
writing and syncing the same bytes, and the two SHA-256 that a row holds, of the update and of the model. A processor
with instructions for SHA-256 takes far less time for them. Time on the clock is disturbed by others on the machine, so
the time of this process alone is counted too. Results go to results/journal.json.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _common import write
from rich.console import Console
from rich.table import Table

from secureafl import Machine, MachineSettings, SecureAFL
from secureafl.server.record.run import Run, StoreSettings

NUM_CLIENTS, DIM, SERVER_LR, SEED = 50, 139_960, 0.01, 0
WARM_UP, ROUNDS, ARRIVALS = 250, 16, 50


class Federation:
    """A run whose clients answer at once."""

    def __init__(self, run_dir: Path | None) -> None:
        machine = Machine(
            SecureAFL(DIM, server_lr=SERVER_LR), np.zeros(DIM, np.float32), MachineSettings(server_lr=SERVER_LR)
        )
        self.run = Run(machine, StoreSettings(run_dir=run_dir, snapshot_every=10**9))
        self._noise = np.random.default_rng(SEED).standard_normal((NUM_CLIENTS, DIM), np.float32)

    def advance(self, num_arrivals: int) -> None:
        """So many arrivals."""
        for _ in range(num_arrivals):
            version = self.run.machine.model.version
            client = (version * 7) % NUM_CLIENTS
            ticket = self.run.issue(f"client-{client}")
            self.run.receive(ticket.number, self.run.machine.model.params - 1 + self._noise[version % NUM_CLIENTS])


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


def timed(task: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of this process."""
    clock, process = time.perf_counter(), time.process_time()
    task()
    return time.perf_counter() - clock, time.process_time() - process


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = Path(name)
        plain, journaled = Federation(None), Federation(directory / "run")
        tasks: dict[str, Callable[[], object]] = {
            "no journal": lambda: plain.advance(ARRIVALS),
            "full journal": lambda: journaled.advance(ARRIVALS),
            "disk alone": lambda: synced_writes(directory, ARRIVALS),
            "hashes alone": lambda: hashes(ARRIVALS),
        }
        for federation in (plain, journaled):
            federation.advance(WARM_UP)
        times: dict[str, list[tuple[float, float]]] = {task: [] for task in tasks}
        for _ in range(ROUNDS):
            for task, work in tasks.items():
                times[task].append(timed(work))
        journaled.run.close()
    shares = {
        "clock, best": {task: min(clock for clock, _ in each) for task, each in times.items()},
        "clock, median": {task: statistics.median(clock for clock, _ in each) for task, each in times.items()},
        "process, median": {task: statistics.median(process for _, process in each) for task, each in times.items()},
    }
    for each in shares.values():
        unit = each["no journal"]
        each.update({task: seconds / unit for task, seconds in each.items()})
    table = Table(title=f"Journaling, n = {NUM_CLIENTS}, d = {DIM:,}: {ROUNDS} x {ARRIVALS} arrivals")
    for column in ("in units of no journal", *shares):
        table.add_column(column, justify="left" if column.startswith("in") else "right")
    for task in times:
        table.add_row(task, *(f"{each[task]:.2f}" for each in shares.values()))
    Console().print(table)
    write("journal", SEED, {"ratios": shares, "rounds": ROUNDS, "arrivals": ARRIVALS})


if __name__ == "__main__":
    main()
