"""What a run's record costs in memory and time: to write, resume, replay and eject a large model, and in a long run.

    python benchmarks/record.py

A process each, for its own peak of resident memory, pages of mapped files included. First 300 arrivals of 10 clients
with a model of a million parameters, under two defenses: the peak to write the run, with a snapshot on the way, and, as
a share of it, to resume, replay and eject. Then 200,000 arrivals of 1,000 clients with a small model: resident
memory on the way, how far it grew after the first 20,000, and the time of an audit, on the clock and of its process
alone, which others on the machine disturb less. Results go to results/record.json.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import write

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.review.audit import client_records
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare

LARGE, ARRIVALS = 1_000_000, 300
DEFENSES = ("asyncsgd", "secureafl")
SMALL, LONG, CLIENTS, LOOK_EVERY = 16, 200_000, 1_000, 20_000


def settings(run_dir: Path) -> FederationSettings:
    """Of the run in this folder, which is called by its defense."""
    return FederationSettings(
        run_dir=run_dir, defense=run_dir.name, client_returns="gradient", server_lr=0.01, snapshot_every=10_000
    )


def machine(run_dir: Path, dim: int) -> Machine:
    chosen = settings(run_dir)
    return Machine(chosen.make_defense(dim), np.zeros(dim, np.float32), chosen.machine())


def feed(run: Run, dim: int, num_arrivals: int, num_clients: int) -> None:
    pull = np.ones(dim, np.float32)
    for arrival in range(num_arrivals):
        ticket = run.issue(f"client-{arrival % num_clients}")
        run.receive(ticket.number, run.machine.model.params - pull)


def write_large(run_dir: Path) -> None:
    run = Run(machine(run_dir, LARGE), settings(run_dir), facts=settings(run_dir).facts())
    feed(run, LARGE, ARRIVALS // 2, 10)
    run.snapshot()  # to be resumed from, with as many arrivals behind it
    feed(run, LARGE, ARRIVALS // 2, 10)
    run.close()


def resume_large(run_dir: Path) -> None:
    Run.resume(machine(run_dir, LARGE), settings(run_dir), facts=settings(run_dir).facts()).close()


def replay_large(run_dir: Path) -> None:
    run = RecordedRun.open(run_dir)
    compare(run, run.machine())


def eject_large(run_dir: Path) -> None:
    eject(RecordedRun.open(run_dir), ["client-3"], run_dir.with_name(f"{run_dir.name} ejected"))


def write_long(run_dir: Path) -> dict[str, object]:
    run = Run(machine(run_dir, SMALL), settings(run_dir), facts=settings(run_dir).facts())
    resident = []
    for _ in range(LONG // LOOK_EVERY):
        feed(run, SMALL, LOOK_EVERY, CLIENTS)
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
    run.close()
    return {"resident_mb": resident, "growth": max(resident) / resident[0] - 1.0}


def audit_long(run_dir: Path) -> dict[str, object]:
    clock, process = time.perf_counter(), time.process_time()
    client_records(RecordedRun.open(run_dir))
    return {"seconds": time.perf_counter() - clock, "process_seconds": time.process_time() - process}


LARGE_JOBS: dict[str, Callable[[Path], object]] = {
    "write": write_large,
    "resume": resume_large,
    "replay": replay_large,
    "eject": eject_large,
}
LONG_JOBS: dict[str, Callable[[Path], object]] = {"write long": write_long, "audit long": audit_long}


def work(job: str, run_dir: Path) -> None:
    """In a process of its own."""
    found = {**LARGE_JOBS, **LONG_JOBS}[job](run_dir) or {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({**found, "peak_mb": peak}))  # type: ignore[dict-item]


def measure(job: str, run_dir: Path) -> dict[str, Any]:
    run_dir.parent.mkdir(exist_ok=True)
    command = [sys.executable, __file__, job, str(run_dir)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{run_dir.name}, {job}: {found}")
    return found


def main() -> None:
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for defense in DEFENSES:
            found = {job: measure(job, Path(name) / "large" / defense) for job in LARGE_JOBS}
            for each in found.values():
                each["of_writing"] = each["peak_mb"] / found["write"]["peak_mb"]
            results[f"large, {defense}"] = found
        results["long"] = {job: measure(job, Path(name) / "long" / DEFENSES[0]) for job in LONG_JOBS}
    write("record", 0, results)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
