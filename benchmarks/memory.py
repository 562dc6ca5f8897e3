"""How much memory does a server take: for a run and its record, over many arrivals, and with clients' rows in a file?

    python benchmarks/memory.py [--quick]

The default defense, a process each, for its own memory. First a run of 200 arrivals of 10 clients with a model of a
million parameters, and a snapshot on the way: the peak of what is resident when it is written, and when it is resumed,
replayed and repaired (`eject`). Then 30,000 arrivals of 1,000 clients with a small model: what is resident on the way.
Then 272 clients of a million parameters without a record, each heard once and then 100 of them at random: with rows in
memory, in a mapped file, and in a mapped file in a process that may have half of that file in all (a memory control
group, which takes root; left out elsewhere). There, memory is what the process has beside mapped files, which the
system takes back when it needs it, and time is the median of the last arrivals by the clock. TMPDIR names the disk.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Table, child, main, memory_mb, told

from secureafl import Machine, MachineSettings
from secureafl.defenses import build_defense
from secureafl.history import RowSettings
from secureafl.server import FederationSettings, Run
from secureafl.server.review.eject import eject
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
RUN = {"dim": 1_000_000, "arrivals": 200}
LONG = {"dim": 16, "arrivals": 30_000, "clients": 1_000, "looks": 12}
ROWS = {"dim": 1_000_000, "clients": 272, "again": 100, "limit_mb": 544}
QUICK_RUN = {"dim": 20_000, "arrivals": 40}
QUICK_LONG = {"dim": 16, "arrivals": 1_000, "clients": 50, "looks": 4}
QUICK_ROWS = {"dim": 100_000, "clients": 20, "again": 10, "limit_mb": 512}


# A run and its record


def settings(run_dir: str) -> FederationSettings:
    return FederationSettings(run_dir=Path(run_dir), client_returns="gradient", server_lr=0.01, snapshot_every=10**6)


def machine(run_dir: str, dim: int) -> Machine:
    chosen = settings(run_dir)
    return Machine(chosen.make_defense(dim, seed=SEED), np.zeros(dim, np.float32), chosen.machine())


def begin(run_dir: str, dim: int) -> Run:
    return Run(machine(run_dir, dim), settings(run_dir), facts={**settings(run_dir).facts(), "seed": SEED})


def feed(run: Run, num_arrivals: int, num_clients: int) -> None:
    pull = np.ones(run.machine.model.params.size, np.float32)
    for arrival in range(num_arrivals):
        ticket = run.issue(f"client-{arrival % num_clients}")
        run.receive(ticket.number, run.machine.model.params - pull)


def write_run(run_dir: str, dim: int, arrivals: int) -> float:
    run = begin(run_dir, dim)
    feed(run, arrivals // 2, 10)
    run.snapshot()  # to be resumed from, with as many arrivals behind it
    feed(run, arrivals // 2, 10)
    run.close()
    return memory_mb("VmHWM")


def resume_run(run_dir: str, dim: int, arrivals: int) -> float:
    facts = {**settings(run_dir).facts(), "seed": SEED}
    Run.resume(machine(run_dir, dim), settings(run_dir), facts=facts).close()
    return memory_mb("VmHWM")


def replay_run(run_dir: str, dim: int, arrivals: int) -> float:
    run = RecordedRun.open(Path(run_dir))
    compare(run, run.machine())
    return memory_mb("VmHWM")


def eject_from_run(run_dir: str, dim: int, arrivals: int) -> float:
    eject(RecordedRun.open(Path(run_dir)), ["client-3"], Path(f"{run_dir} ejected"))
    return memory_mb("VmHWM")


JOBS = {"write": write_run, "resume": resume_run, "replay": replay_run, "eject": eject_from_run}


def write_long_run(run_dir: str, dim: int, arrivals: int, clients: int, looks: int) -> list[float]:
    """What is resident, after each of so many parts of all arrivals."""
    run, resident = begin(run_dir, dim), []
    for _ in range(looks):
        feed(run, arrivals // looks, clients)
        resident.append(memory_mb("VmRSS"))
    run.close()
    return resident


# Rows


def take_rows(folder: str, dim: int, clients: int, again: int, limit_mb: int) -> dict[str, Any]:
    """A server whose clients' rows are in a file in this folder, or in memory if it names none."""
    rows = RowSettings(rows="mapped", rows_dir=Path(folder)) if folder else RowSettings()
    defense = build_defense("secureafl", dim, {}, server_lr=0.01, seed=SEED, rows=rows)
    server = Machine(defense, np.zeros(dim, np.float32), MachineSettings(server_lr=0.01))
    rng, seconds, reasons = np.random.default_rng(SEED), list[float](), list[str]()
    updates = rng.standard_normal((8, dim), np.float32) * np.float32(0.2) + np.float32(1.0)
    updates *= np.float32(1.0 / dim**0.5)
    for client in [*range(clients), *rng.integers(clients, size=again).tolist()]:
        ticket = server.issue(server.enrol(f"client-{client}"))
        began = time.perf_counter()
        reasons.append(str(server.receive(ticket.number, updates[len(reasons) % len(updates)]).reason))
        seconds.append(time.perf_counter() - began)
    return {
        "own_mb": memory_mb("RssAnon"),
        "milliseconds": 1e3 * float(np.median(seconds[clients:])),
        "reasons": reasons,
    }


@contextlib.contextmanager
def memory_group(limit_mb: int) -> Iterator[Path | None]:
    """A control group of so much memory (cgroup v1 or v2); None if this user may not make one."""
    first = Path("/sys/fs/cgroup/memory")
    group = (first if first.exists() else Path("/sys/fs/cgroup")) / f"secureafl-memory-{os.getpid()}"
    with contextlib.ExitStack() as after:
        try:
            group.mkdir()
            after.callback(group.rmdir)
            (group / ("memory.limit_in_bytes" if first.exists() else "memory.max")).write_text(str(limit_mb * 10**6))
        except OSError as error:
            print(f"left out: a process with {limit_mb} MB ({error})")
            yield None
        else:
            yield group


def measure_rows(folder: str, sizes: dict[str, int]) -> dict[str, Any]:
    kept_in = {"memory": "", "a mapped file": folder}
    found = {name: told(child(take_rows, place, *sizes.values())) for name, place in kept_in.items()}
    with memory_group(sizes["limit_mb"]) as group:
        if group is not None:
            limited = child(take_rows, folder, *sizes.values(), group=group)
            found[f"a mapped file, {sizes['limit_mb']} MB in all"] = told(limited)
    reasons = [one.pop("reasons") for one in found.values()]
    return {
        **sizes,
        "rows_mb": sizes["clients"] * sizes["dim"] * 4 / 1e6,
        "same_verdicts": all(one == reasons[0] for one in reasons),
        "times_memory": {name: one["milliseconds"] / found["memory"]["milliseconds"] for name, one in found.items()},
        "kept_in": found,
    }


def measure(quick: bool) -> dict[str, Any]:
    run, long, rows = (QUICK_RUN, QUICK_LONG, QUICK_ROWS) if quick else (RUN, LONG, ROWS)
    with tempfile.TemporaryDirectory() as folder:
        peaks: dict[str, float] = {}
        for name, job in JOBS.items():
            peaks[name] = told(child(job, f"{folder}/run", *run.values()))
            print(f"{name}: {peaks[name]:.0f} MB", flush=True)
        resident = told(child(write_long_run, f"{folder}/long", *long.values()))
        print(f"over {long['arrivals']:,} arrivals: {resident} MB", flush=True)
        return {
            "run": {**run, "peak_mb": peaks, "of_writing": {job: peak / peaks["write"] for job, peak in peaks.items()}},
            "long": {**long, "resident_mb": resident, "growth": max(resident) / resident[0] - 1.0},
            "rows": measure_rows(f"{folder}/rows", rows),
        }


def tables(results: dict[str, Any]) -> list[Table]:
    run, long, rows = results["run"], results["long"], results["rows"]
    of_run = [(job, f"{peak:.0f} MB", f"{run['of_writing'][job]:.2f}") for job, peak in run["peak_mb"].items()]
    ends = ((long["arrivals"] // long["looks"], long["resident_mb"][0]), (long["arrivals"], long["resident_mb"][-1]))
    of_long = [(f"{arrivals:,}", f"{mb:.1f} MB") for arrivals, mb in ends]
    of_rows = [
        (name, f"{one['own_mb']:.0f} MB", f"{rows['times_memory'][name]:.2f}") for name, one in rows["kept_in"].items()
    ]
    columns = ("rows in", "memory without mapped files", "time of an arrival, times memory's")
    return [
        Table(
            ("", "peak of memory", "times writing's"),
            of_run,
            f"A run of {run['arrivals']:,} updates of {run['dim']:,} parameters",
        ),
        Table(("arrivals", "memory"), of_long, f"{long['clients']:,} clients of {long['dim']} parameters"),
        Table(columns, of_rows, f"{rows['clients']} clients of {rows['dim']:,} parameters"),
    ]


def draw(results: dict[str, Any]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    run, long, rows = results["run"], results["long"], results["rows"]
    figure = Figure((9.6, 2.8), layout="constrained")
    peaks, resident, kept = figure.subplots(1, 3)
    peaks.bar(list(run["peak_mb"]), list(run["peak_mb"].values()))
    peaks.set(ylabel="peak of memory, MB")
    peaks.set_title(f"A run, {run['dim']:,} parameters", fontsize="medium")
    each = long["arrivals"] // long["looks"]
    resident.plot([each * (look + 1) for look in range(long["looks"])], long["resident_mb"], "-o", markersize=3)
    resident.set(ylabel="memory, MB", xlabel="arrivals", ylim=(0, 1.1 * max(long["resident_mb"])))
    resident.set_title(f"Over arrivals, {long['clients']:,} clients", fontsize="medium")
    labels = [name.removeprefix("a ").replace(", ", ",\n") for name in rows["kept_in"]]
    bars = kept.bar(labels, [one["own_mb"] for one in rows["kept_in"].values()])
    kept.bar_label(bars, [f"x {ratio:.2f}" for ratio in rows["times_memory"].values()])
    kept.axhline(rows["rows_mb"], color="black", linestyle="--", label="the rows")
    kept.margins(y=0.15)
    kept.set(ylabel="memory without\nmapped files, MB")
    kept.tick_params(axis="x", labelsize="small")
    kept.set_title(f"Where {rows['clients']} clients' rows are", fontsize="medium")
    kept.legend(fontsize="small", loc="center right")
    caption = (
        "Peaks of memory to write a run and to work on its record; memory over many arrivals; and memory with clients' "
        "rows in memory and in a mapped file, with the time of an arrival as a multiple."
    )
    return figure, caption


if __name__ == "__main__":
    main(__doc__, "memory", measure, tables, draw, seed=SEED)
