"""What an arrival costs as more clients are enrolled than have a seat, through a run with its journal.

    python benchmarks/clients.py [--quick]

The same federation twice, a process each, side by side: with a thousand clients, and with a million. A fifth of them
send ten times the opposite. Of so many hardly anyone returns, so `full_vote_after` is 1 in both, as the notice to the
operator advises. Said of each: time per arrival, on the clock and of the process; arrivals without a snapshot that took
more than 100 ms of the process, and the longest but one in ten thousand (a shared machine takes processors away for
longer than an arrival); memory, along the run and at its peak, beside what the run said; and how far from the optimum
the model ends. The second ends as if it was killed. Then one of its clients is audited, its pages are asked for in the
dashboard, and it is resumed: how long each takes, and whether the model is the same. Needs 10 GB in TMPDIR.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import SECUREAFL, Table, child, main, memory_mb, told

from secureafl import Machine
from secureafl.server import FederationSettings, Run
from secureafl.server.record.run import model_hash
from secureafl.types import ClientId

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW, QUICK_FEW = 1_000, 200
SIZES = {"clients": 1_000_000, "seats": 20_000, "arrivals": 300_000, "dim": 10_000}
QUICK = {"clients": 5_000, "seats": 400, "arrivals": 1_500, "dim": 100}
LOOKS = 50
WARM_UP = 1_000
IN_FLIGHT = 10
NUM_NOISES = 64
RATE = 0.002


def settings(run_dir: str, clients: int, seats: int, arrivals: int) -> FederationSettings:
    return FederationSettings(
        run_dir=Path(run_dir),
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


def feed(run_dir: str, clients: int, seats: int, arrivals: int, dim: int) -> dict[str, Any]:
    """Run to the end, and leave the run as a killed server does."""
    chosen = settings(run_dir, clients, seats, arrivals)
    warm_up(chosen, dim)
    before = memory_mb("VmHWM")
    run = Run(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    rng = np.random.default_rng(0)
    optimum = rng.normal(size=dim).astype(np.float32)
    noises = rng.normal(size=(NUM_NOISES, dim)).astype(np.float32)
    malicious = rng.random(clients) < 0.2
    along: dict[str, list[float]] = {"arrivals": [], "process_ms": [], "mb": [], "said_mb": []}
    flight, heard, each, block = [], set[int](), list[float](), list[float]()
    clock, process = time.perf_counter(), time.process_time()
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
        block.append(time.process_time() - began)
        if arrival > WARM_UP and run.machine.model.version % chosen.snapshot_every:
            each.append(block[-1])
        if len(block) == arrivals // LOOKS:
            along["arrivals"].append(arrival - IN_FLIGHT + 1)
            along["process_ms"].append(1e3 * float(np.mean(block)))
            along["mb"].append(memory_mb("VmRSS") - before)
            along["said_mb"].append(said_mb(run, len(heard), clients))
            block.clear()
    took = time.perf_counter() - clock, time.process_time() - process
    return {
        "clients": clients,
        "ms_per_arrival": 1e3 * took[0] / arrivals,
        "process_ms_per_arrival": 1e3 * took[1] / arrivals,
        "over_100_process_ms": sum(seconds > 0.1 for seconds in each),
        "process_ms_of_all_but_one_in_10000": 1e3 * float(np.quantile(each, 0.9999)),
        "heard": len(heard),
        "last": name_of(client),
        "peak_mb": memory_mb("VmHWM"),
        "peak_mb_beyond_the_empty_process": memory_mb("VmHWM") - before,
        "said_mb": said_mb(run, len(heard), clients),
        "distance": float(np.linalg.norm(run.machine.published.params - optimum) / np.linalg.norm(optimum)),
        "model": model_hash(run.machine.model.params).hex(),
        "along": along,
    }


def said_mb(run: Run, heard: int, enrolled: int) -> float:
    """What the run says that so many clients take."""
    said = run.machine.client_memory()
    assert said is not None
    return said.in_memory(heard, enrolled) / 1e6


def warm_up(chosen: FederationSettings, dim: int) -> None:
    """Have everything compiled and loaded, so that what grows afterwards is what clients take."""
    small = machine(chosen, 20, dim)
    for number in range(60):
        small.receive(small.issue(ClientId(number % 20)).number, np.full(dim, 1.0 + number % 7, np.float32))


def resume(run_dir: str, clients: int, seats: int, arrivals: int, dim: int) -> dict[str, Any]:
    chosen, clock = settings(run_dir, clients, seats, arrivals), time.perf_counter()
    run = Run.resume(machine(chosen, clients, dim), chosen, facts=chosen.facts())
    found = {"resume_seconds": time.perf_counter() - clock, "resumed_model": model_hash(run.machine.model.params).hex()}
    run.close()
    return found


def look(run_dir: str, name: str) -> dict[str, float]:
    """Seconds until one client is audited, and until pages of the dashboard answer, once it has read the run."""
    began = time.perf_counter()
    subprocess.run([*SECUREAFL, "audit", run_dir, "--client", name], check=True, stdout=subprocess.DEVNULL)
    found = {"audit_of_one_client": time.perf_counter() - began}
    command = [*SECUREAFL, "dashboard", run_dir, "--port", "0"]
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


def measure(quick: bool) -> dict[str, Any]:
    sizes = QUICK if quick else SIZES
    clients, *others = sizes.values()
    with tempfile.TemporaryDirectory() as name:
        both = [child(feed, f"{name}/{number}", number, *others) for number in (QUICK_FEW if quick else FEW, clients)]
        few, many = map(told, both)
        many["seconds"] = look(f"{name}/{clients}", many["last"])
        many |= told(child(resume, f"{name}/{clients}", *sizes.values()))
    ratios = {key: many[key] / few[key] for key in ("ms_per_arrival", "process_ms_per_arrival")}
    memory = many["peak_mb_beyond_the_empty_process"] / many["said_mb"]
    return {**sizes, "few": few, "many": many, "ratios": ratios, "memory_to_said": memory}


def tables(results: dict[str, Any]) -> list[Table]:
    few, many, seconds = results["few"], results["many"], results["many"]["seconds"]
    pages = max(took for page, took in seconds.items() if page != "audit_of_one_client")
    same = "the same" if many["resumed_model"] == many["model"] else "ANOTHER"

    def both(meaning: str, key: str, shape: str) -> tuple[str, str, str]:
        return meaning, format(few[key], shape), format(many[key], shape)

    rows = [
        ("processor time of an arrival, relative", "1", f"{results['ratios']['process_ms_per_arrival']:.2f}"),
        both("arrivals that took more than 100 ms of the processor, without a snapshot", "over_100_process_ms", ","),
        both("all but one in ten thousand took less than, ms", "process_ms_of_all_but_one_in_10000", ".0f"),
        both("clients heard", "heard", ","),
        both("memory beyond that of an empty process, MB", "peak_mb_beyond_the_empty_process", ",.0f"),
        both("what the run says of so many clients, MB", "said_mb", ",.0f"),
        both("distance from the optimum at the end, at the start 1", "distance", ".3f"),
        (f"ended as if killed, and resumed: {same} model, bit for bit", "", f"in {many['resume_seconds']:.0f} s"),
        ("audit of one client, with the command's own start", "", f"{seconds['audit_of_one_client']:.1f} s"),
        ("slowest page of the dashboard, of three requests each", "", f"{pages:.2f} s"),
    ]
    title = f"{results['arrivals']:,} arrivals of {results['dim']:,} parameters, {results['seats']:,} seats"
    return [Table(("", f"{few['clients']:,} clients", f"{many['clients']:,} clients"), rows, title)]


def draw(results: dict[str, Any]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((9.6, 3.0), layout="constrained")
    times, memory = figure.subplots(1, 2)
    for number, found in enumerate((results["many"], results["few"])):
        along, color, label = found["along"], f"C{number}", f"{found['clients']:,} clients"
        times.plot(along["arrivals"], along["process_ms"], color=color, label=label)
        memory.plot(along["arrivals"], along["mb"], color=color, label=label)
        memory.plot(along["arrivals"], along["said_mb"], color=color, linestyle="--")
    times.set(xlabel="arrivals", ylabel="processor time of an arrival, ms", ylim=(0, None))
    memory.plot([], [], color="black", linestyle="--", label="what the run says")
    memory.set(xlabel="arrivals", ylabel="memory beyond an empty\nprocess's, MB")
    for axes in (times, memory):
        axes.legend(fontsize="small")
    caption = (
        "Processor time of an arrival, snapshots included, and memory beside what the run says that its clients take."
    )
    return figure, caption


if __name__ == "__main__":
    main(__doc__, "clients", measure, tables, draw)
