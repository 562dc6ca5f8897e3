"""What it costs to keep clients' rows elsewhere than in memory, as ratios to memory in one run.

    python benchmarks/rows.py [mapped] [ray] [large]

mapped  Rows in a mapped file twice as large as the memory that the process is given, against the same in memory. The
        process is put into a memory control group of its own (cgroup v1 or v2, as root), which counts its pages and the
        file's: what does not fit is written to the disk and read again.
ray     Rows in two nodes of a Ray cluster on this machine, each a set of processes, against memory.
large   300 clients of 10 million parameters, float16 rows in a mapped file, against AsyncSGD.

In each, two servers take the same updates in turn, and time is that of the arrival alone. What was measured already is
kept: results/rows.json has each part with where it came from, and a part that is there is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import ROOT, about

from secureafl import Machine, MachineSettings
from secureafl.defenses import build_defense
from secureafl.history import RowSettings

RESULTS = ROOT / "results" / "rows.json"
SECONDS = 60.0
SEED = 0
NUM_UPDATES = 8
MB = 1 << 20


class Server:
    """A defense that takes updates which cost nothing to make."""

    def __init__(self, name: str, dim: int, settings: dict[str, Any], rows: RowSettings = RowSettings()) -> None:
        defense = build_defense(name, dim, settings, server_lr=0.01, seed=SEED, rows=rows)
        self._machine = Machine(defense, np.zeros(dim, np.float32), MachineSettings(server_lr=0.01))
        self.seconds: list[float] = []

    def take(self, client: int, delta: np.ndarray[Any, Any]) -> str:
        ticket = self._machine.issue(self._machine.enrol(f"client-{client}"))
        began = time.perf_counter()
        verdict = self._machine.receive(ticket.number, delta)
        self.seconds.append(time.perf_counter() - began)
        return str(verdict.reason)


def updates(dim: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(SEED)
    made = []
    for _ in range(NUM_UPDATES):
        delta = rng.standard_normal(dim, np.float32)
        delta *= np.float32(0.2)
        delta += np.float32(1.0)
        delta *= np.float32(1.0 / np.sqrt(dim))
        made.append(delta)
    return made


def compared(one: Server, other: Server, clients: int, dim: int) -> dict[str, Any]:
    """Everyone is heard once, and then clients at random, each by both servers, for as long as there is time."""
    sent, rng, same = updates(dim), np.random.default_rng(SEED), 0
    began = time.perf_counter()
    for client in range(clients):
        same += one.take(client, sent[client % NUM_UPDATES]) == other.take(client, sent[client % NUM_UPDATES])
    one.seconds.clear()
    other.seconds.clear()
    filled = time.perf_counter() - began
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        client, delta = int(rng.integers(clients)), sent[int(rng.integers(NUM_UPDATES))]
        same += one.take(client, delta) == other.take(client, delta)
    arrivals = len(one.seconds)
    return {
        "clients": clients,
        "dim": dim,
        "arrivals": arrivals,
        "fill_seconds": filled,
        "same_reasons": same == arrivals + clients,
        "ratio_of_medians": float(np.median(one.seconds) / np.median(other.seconds)),
        "ratio_of_means": float(np.mean(one.seconds) / np.mean(other.seconds)),
    }


def mapped(folder: Path) -> dict[str, Any]:
    """In two processes that take turns: the limited one alone has the mapped file."""
    dim, clients, limit = 1_000_000, 272, 512 * MB
    with memory_group(limit) as group:
        limited, free = worker(dim, folder, group), worker(dim)
        try:
            found = take_turns(limited, free, clients)
        finally:
            for process in (limited, free):
                process.kill()
                process.wait()
        sizes = {"clients": clients, "dim": dim, "limit_mb": limit // MB, "rows_mb": clients * dim * 4 // MB}
        return {**sizes, **found, "most_used_mb": most_used(group) // MB}


def worker(dim: int, folder: Path | None = None, group: Path | None = None) -> subprocess.Popen[str]:
    """A server in a process of its own, all of whose memory counts in the group."""
    command = [sys.executable, __file__, "--worker", str(dim), str(folder or "")]
    pipe = subprocess.PIPE

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, preexec_fn=join)


def work(dim: int, folder: str) -> None:
    """Take the arrival that each line names, and answer how long it took."""
    rows = RowSettings(rows="mapped", rows_dir=Path(folder)) if folder else RowSettings()
    server, sent = Server("secureafl", dim, {}, rows), updates(dim)
    for line in sys.stdin:
        client, number = map(int, line.split())
        reason = server.take(client, sent[number])
        print(f"{server.seconds.pop():.9f} {reason}", flush=True)


def take_turns(one: subprocess.Popen[str], other: subprocess.Popen[str], clients: int) -> dict[str, Any]:
    rng, same = np.random.default_rng(SEED), True
    took: tuple[list[float], list[float]] = [], []

    def ask(client: int, number: int) -> list[tuple[float, str]]:
        answers = []
        for process in (one, other):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{client} {number}\n")
            process.stdin.flush()
            seconds, reason = process.stdout.readline().split()
            answers.append((float(seconds), reason))
        return answers

    for client in range(clients):
        ask(client, client % NUM_UPDATES)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        answers = ask(int(rng.integers(clients)), int(rng.integers(NUM_UPDATES)))
        same = same and answers[0][1] == answers[1][1]
        for seconds, (found, _) in zip(took, answers, strict=True):
            seconds.append(found)
    return {
        "arrivals": len(took[0]),
        "same_reasons": same,
        "ratio_of_medians": float(np.median(took[0]) / np.median(took[1])),
        "ratio_of_means": float(np.mean(took[0]) / np.mean(took[1])),
    }


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A control group of so much memory."""
    first = Path("/sys/fs/cgroup/memory")
    group = (first if first.exists() else Path("/sys/fs/cgroup")) / f"secureafl-rows-{os.getpid()}"
    group.mkdir()
    try:
        limits = group / ("memory.limit_in_bytes" if first.exists() else "memory.max")
        limits.write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def most_used(group: Path) -> int:
    first = group / "memory.max_usage_in_bytes"
    return int((first if first.exists() else group / "memory.peak").read_text())


def in_ray(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from tests.ray_nodes import ray_cluster

    dim, clients = 139_960, 200
    with ray_cluster() as cluster:
        spread = Server("secureafl", dim, {}, RowSettings(rows="ray", ray_address=cluster.address))
        return {"nodes": 2, **compared(spread, Server("secureafl", dim, {}), clients, dim)}


def large(folder: Path) -> dict[str, Any]:
    dim, clients = 10_000_000, 300
    rows = RowSettings(rows="mapped", rows_dir=folder)
    ours = Server("secureafl", dim, {"history_dtype": "float16"}, rows)
    found = compared(ours, Server("asyncsgd", dim, {}), clients, dim)
    del found["same_reasons"]
    return {**found, "rows_gb": clients * dim * 2 / 1e9}


PARTS = {"mapped": mapped, "ray": in_ray, "large": large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, help="on a local disk, for mapped files; /tmp by default")
    chosen = parser.parse_args()
    done: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in chosen.parts or PARTS:
        if part in done:
            print(f"{part}: measured already; delete it from {RESULTS.name} to measure it again")
            continue
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            done[part] = {**about(), "seed": SEED, "results": PARTS[part](Path(folder))}
        print(f"{part}: {done[part]['results']}", flush=True)
        RESULTS.write_text(json.dumps(done, indent=2) + "\n")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(int(sys.argv[2]), sys.argv[3])
    else:
        main()
