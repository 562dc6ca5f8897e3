"""What an arrival costs as more clients are enrolled than have a seat, through a run with its journal.

    python benchmarks/clients.py [--clients 1000000] [--seats 20000] [--arrivals 300000] [--dim 10000]

The same federation twice, a process each: with a thousand clients, and with as many as asked for. A fifth of them send
ten times the opposite. Said of each: time per arrival on the clock and of the process, the slowest arrival that took no
snapshot, the peak of resident memory, and how far from the optimum the model ends. The second is killed when it is done
and resumed: how long that takes, and whether the model is the same. Results go to results/clients.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import write

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.record.run import model_hash

FEW = 1_000
IN_FLIGHT = 10
NUM_NOISES = 64
RATE = 0.002


def settings(run_dir: Path, seats: int, arrivals: int) -> FederationSettings:
    return FederationSettings(
        run_dir=run_dir,
        client_returns="gradient",
        server_lr=RATE,
        snapshot_every=max(1, arrivals // 6),
        keep_snapshots=1,
        max_journal_bytes=1,
        defense_settings={"max_seats": seats, "max_newcomers": seats},
    )


def machine(chosen: FederationSettings, clients: int, dim: int) -> Machine:
    """With all clients enrolled before anything else happens."""
    made = Machine(chosen.make_defense(dim, seed=1), np.zeros(dim, np.float32), chosen.machine())
    for client in range(clients):
        made.enrol(name_of(client))
    return made


def name_of(client: int) -> str:
    return f"client-{client:07d}"


def feed(run_dir: Path, clients: int, seats: int, arrivals: int, dim: int) -> dict[str, Any]:
    """Run to the end, and die there without a word to the run."""
    chosen = settings(run_dir, seats, arrivals)
    run = Run(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    rng = np.random.default_rng(0)
    optimum = rng.normal(size=dim).astype(np.float32)
    noises = rng.normal(size=(NUM_NOISES, dim)).astype(np.float32)
    malicious = rng.random(clients) < 0.2
    flight, slowest, clock, process = [], 0.0, time.perf_counter(), time.process_time()
    for arrival in range(arrivals + IN_FLIGHT):
        client = int(rng.integers(clients))
        flight.append((run.issue(name_of(client)), client))
        if len(flight) <= IN_FLIGHT:
            continue
        ticket, client = flight.pop(0)
        delta = run.machine.model_of(ticket).params - optimum + noises[arrival % NUM_NOISES]
        began = time.process_time()
        run.receive(ticket.number, np.float32(-10.0 if malicious[client] else 1.0) * delta)
        if arrival > FEW and run.machine.model.version % chosen.snapshot_every:
            slowest = max(slowest, time.process_time() - began)
    took = time.perf_counter() - clock, time.process_time() - process
    return {
        "clients": clients,
        "ms_per_arrival": 1e3 * took[0] / arrivals,
        "process_ms_per_arrival": 1e3 * took[1] / arrivals,
        "slowest_process_ms": 1e3 * slowest,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "distance": float(np.linalg.norm(run.machine.published.params - optimum) / np.linalg.norm(optimum)),
        "model": model_hash(run.machine.model.params).hex(),
    }


def resume(run_dir: Path, clients: int, seats: int, arrivals: int, dim: int) -> dict[str, Any]:
    chosen, clock = settings(run_dir, seats, arrivals), time.perf_counter()
    run = Run.resume(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    found = {"resume_seconds": time.perf_counter() - clock, "resumed_model": model_hash(run.machine.model.params).hex()}
    run.close()
    return found


def in_a_process(job: str, run_dir: Path, *sizes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--job", job, "--run-dir", str(run_dir), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{job}, {sizes[0]:,} clients: {found}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, usual in (("clients", 1_000_000), ("seats", 20_000), ("arrivals", 300_000), ("dim", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    chosen = parser.parse_args()
    sizes = chosen.seats, chosen.arrivals, chosen.dim
    with tempfile.TemporaryDirectory() as name:
        few = in_a_process("feed", Path(name) / "few", FEW, *sizes)
        many = in_a_process("feed", Path(name) / "many", chosen.clients, *sizes)
        many |= in_a_process("resume", Path(name) / "many", chosen.clients, *sizes)
    ratio = many["process_ms_per_arrival"] / few["process_ms_per_arrival"]
    write("clients", 0, {**vars(chosen), "few": few, "many": many, "process_ratio": ratio})


if __name__ == "__main__":
    if "--job" in sys.argv:
        job, run_dir, *sizes = sys.argv[2], Path(sys.argv[4]), *map(int, sys.argv[5:])
        print(json.dumps({"feed": feed, "resume": resume}[job](run_dir, *sizes)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    main()
