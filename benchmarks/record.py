"""What a run's record costs in memory and time: to write, resume, replay and eject a large model, and in a long run.

    python benchmarks/record.py

A process each, for its own peak. First 300 arrivals of a model of a million parameters: the peak to write, resume,
replay and eject. Then 200,000 arrivals of 1,000 clients with a small model: resident memory on the way, and the time of
an audit. Results go to results/record.json.
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

import numpy as np
from _common import write

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.review.audit import client_records
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare

LARGE, ARRIVALS = 1_000_000, 300
SMALL, LONG, CLIENTS, LOOK_EVERY = 16, 200_000, 1_000, 20_000


def settings(run_dir: Path) -> FederationSettings:
    return FederationSettings(
        run_dir=run_dir, defense="asyncsgd", client_returns="gradient", server_lr=0.01, snapshot_every=10_000
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
    feed(run, LARGE, ARRIVALS, 10)
    run.close()


def resume_large(run_dir: Path) -> None:
    Run.resume(machine(run_dir, LARGE), settings(run_dir), facts=settings(run_dir).facts()).close()


def replay_large(run_dir: Path) -> None:
    run = RecordedRun.open(run_dir)
    compare(run, run.machine())


def eject_large(run_dir: Path) -> None:
    eject(RecordedRun.open(run_dir), ["client-3"], run_dir.with_name("ejected"))


def write_long(run_dir: Path) -> dict[str, list[float]]:
    run = Run(machine(run_dir, SMALL), settings(run_dir), facts=settings(run_dir).facts())
    resident = []
    for _ in range(LONG // LOOK_EVERY):
        feed(run, SMALL, LOOK_EVERY, CLIENTS)
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)
    run.close()
    return {"resident_mb": resident}


def audit_long(run_dir: Path) -> dict[str, float]:
    began = time.perf_counter()
    client_records(RecordedRun.open(run_dir))
    return {"seconds": time.perf_counter() - began}


JOBS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "write": ("large", write_large),
    "resume": ("large", resume_large),
    "replay": ("large", replay_large),
    "eject": ("large", eject_large),
    "write long": ("long", write_long),
    "audit long": ("long", audit_long),
}


def main() -> None:
    if len(sys.argv) > 1:
        found = JOBS[sys.argv[1]][1](Path(sys.argv[2])) or {}
        print(json.dumps({**found, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}))  # type: ignore[dict-item]
        return
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        for job, (folder, _) in JOBS.items():
            command = [sys.executable, __file__, job, str(Path(name) / folder)]
            results[job] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{job}: {results[job]}")
    write("record", 0, results)


if __name__ == "__main__":
    main()
