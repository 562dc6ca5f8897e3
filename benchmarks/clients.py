"""What an arrival costs as more clients are enrolled than have a seat, through a run with its journal.

    python benchmarks/clients.py [--clients 1000000] [--seats 20000] [--arrivals 300000] [--dim 10000]

The same federation twice, a process each, side by side: with a thousand clients, and with as many as asked for. A fifth
of them send ten times the opposite. Of so many hardly anyone returns, so `full_vote_after` is 1 in both, as the notice
to the operator advises. Said of each: time per arrival, on the clock and of the process; arrivals without a
snapshot that took more than 100 ms of the process, and the longest but one in ten thousand (a shared machine takes
processors away for longer than an arrival); the peak of resident memory beside what the run said at its start; and how
far from the optimum the model ends. The second is killed when it is done. Then one of its clients is audited, its pages
are asked for in the dashboard, and it is resumed: how long each takes, and whether the model is the same. Needs 10 GB
in TMPDIR at the full size. Results go to results/clients.json.
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
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from _common import write

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.record.run import model_hash
from secureafl.types import ClientId

FEW = 1_000
IN_FLIGHT = 10
NUM_NOISES = 64
RATE = 0.002


def settings(run_dir: Path, clients: int, seats: int, arrivals: int) -> FederationSettings:
    return FederationSettings(
        run_dir=run_dir,
        client_returns="gradient",
        server_lr=RATE,
        snapshot_every=max(1, arrivals // 6),
        keep_snapshots=1,
        max_journal_bytes=1,
        defense_settings={"max_seats": seats, "max_newcomers": max(seats, clients), "full_vote_after": 1},
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
    chosen = settings(run_dir, clients, seats, arrivals)
    warm_up(chosen, dim)
    before = peak_mb()
    run = Run(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    rng = np.random.default_rng(0)
    optimum = rng.normal(size=dim).astype(np.float32)
    noises = rng.normal(size=(NUM_NOISES, dim)).astype(np.float32)
    malicious = rng.random(clients) < 0.2
    flight, heard, each, clock, process = [], set[int](), [], time.perf_counter(), time.process_time()
    for arrival in range(arrivals + IN_FLIGHT):
        client = int(rng.integers(clients))
        flight.append((run.issue(name_of(client)), client))
        if len(flight) <= IN_FLIGHT:
            continue
        ticket, client = flight.pop(0)
        delta = run.machine.model_of(ticket).params - optimum + noises[arrival % NUM_NOISES]
        began = time.process_time()
        run.receive(ticket.number, np.float32(-10.0 if malicious[client] else 1.0) * delta)
        heard.add(client)
        if arrival > FEW and run.machine.model.version % chosen.snapshot_every:
            each.append(time.process_time() - began)
    took = time.perf_counter() - clock, time.process_time() - process
    said = run.machine.client_memory()
    assert said is not None
    return {
        "clients": clients,
        "ms_per_arrival": 1e3 * took[0] / arrivals,
        "process_ms_per_arrival": 1e3 * took[1] / arrivals,
        "over_100_process_ms": sum(seconds > 0.1 for seconds in each),
        "process_ms_of_all_but_one_in_10000": 1e3 * float(np.quantile(each, 0.9999)),
        "heard": len(heard),
        "last": name_of(client),
        "peak_mb": peak_mb(),
        "peak_mb_beyond_the_empty_process": peak_mb() - before,
        "said_mb": said.in_memory(len(heard), clients) / 1e6,
        "distance": float(np.linalg.norm(run.machine.published.params - optimum) / np.linalg.norm(optimum)),
        "model": model_hash(run.machine.model.params).hex(),
    }


def warm_up(chosen: FederationSettings, dim: int) -> None:
    """Have everything compiled and loaded, so that what grows afterwards is what clients take."""
    small = machine(chosen, 20, dim)
    for number in range(60):
        small.receive(small.issue(ClientId(number % 20)).number, np.full(dim, 1.0 + number % 7, np.float32))


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def resume(run_dir: Path, clients: int, seats: int, arrivals: int, dim: int) -> dict[str, Any]:
    chosen, clock = settings(run_dir, clients, seats, arrivals), time.perf_counter()
    run = Run.resume(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    found = {"resume_seconds": time.perf_counter() - clock, "resumed_model": model_hash(run.machine.model.params).hex()}
    run.close()
    return found


def look(run_dir: Path, name: str) -> dict[str, float]:
    """Seconds until one client is audited, and until pages of the dashboard answer, once it has read the run."""
    began = time.perf_counter()
    subprocess.run(["secureafl", "audit", str(run_dir), "--client", name], check=True, stdout=subprocess.DEVNULL)
    found = {"audit_of_one_client": time.perf_counter() - began}
    command = ["secureafl", "dashboard", str(run_dir), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        _ask(f"{address}api/summary")  # waits for the run to be read
        for page in (
            "summary",
            "charts",
            "clients",
            "clients?page=200",
            "clients?sort=factor",
            "clients?contains=99",
            f"client?name={name}",
        ):
            found[page] = max(_ask(f"{address}api/{page}") for _ in range(3))
    finally:
        server.kill()
        server.communicate()
    return found


def _ask(address: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=600.0) as answer:
        answer.read()
    return time.perf_counter() - began


def start(job: str, run_dir: Path, *sizes: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--job", job, "--run-dir", str(run_dir), *map(str, sizes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    found: dict[str, Any] = json.loads(out)
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, usual in (("clients", 1_000_000), ("seats", 20_000), ("arrivals", 300_000), ("dim", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    chosen = parser.parse_args()
    sizes = chosen.seats, chosen.arrivals, chosen.dim
    with tempfile.TemporaryDirectory() as name:
        both = [start("feed", Path(name) / str(clients), clients, *sizes) for clients in (FEW, chosen.clients)]
        few, many = map(told, both)
        run_dir = Path(name) / str(chosen.clients)
        many["seconds"] = look(run_dir, many["last"])
        print(many["seconds"], flush=True)
        many |= told(start("resume", run_dir, chosen.clients, *sizes))
    ratios = {key: many[key] / few[key] for key in ("ms_per_arrival", "process_ms_per_arrival")}
    memory = many["peak_mb_beyond_the_empty_process"] / many["said_mb"]
    write("clients", 0, {**vars(chosen), "few": few, "many": many, "ratios": ratios, "memory_to_said": memory})


if __name__ == "__main__":
    if "--job" in sys.argv:
        job, run_dir, *sizes = sys.argv[2], Path(sys.argv[4]), *map(int, sys.argv[5:])
        print(json.dumps({"feed": feed, "resume": resume}[job](run_dir, *sizes)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    main()
