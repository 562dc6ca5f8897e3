"""What does one arrival cost, from ticket to new model, for how many clients?

    python benchmarks/arrival.py [--quick]

AsyncSGD, the default (running mean) and the default of 0.1 (median) behind the machine, side by side in one run: they
take turns in blocks of arrivals, and CPU time of the process is counted, of all threads. Averages include all that is
done now and then, such as counting who is alike. Everyone is honest, and has a whole vote after one update, so that
large federations are warm soon. On a shared machine only ratios mean something. Needs 4 GB of memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import write
from rich.console import Console
from rich.table import Table

from secureafl import ClientId, Machine, MachineSettings
from secureafl.defenses import build_defense

SEED = 0
SERVER_LR = 1e-6  # the model hardly moves: what is measured is the work, and nobody is to be rejected
NUM_NOISES = 7  # vectors of randomness that all updates are made of
BLOCK = 100  # arrivals in a turn
DEFENSES: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncsgd": ("asyncsgd", {}),
    "running mean": ("secureafl", {"full_vote_after": 1}),
    "median": ("secureafl", {"aggregate": "median"}),
}
SIZES = [(50, 139_960), (1_000, 139_960), (5_000, 139_960), (50, 2_000), (100_000, 2_000)]
QUICK = [(20, 5_000), (200, 5_000)]
MAX_MEDIAN = 1_000
"""The median is not measured with more clients: an arrival would take seconds."""


class Federation:
    """A machine and its clients, which come in turn."""

    def __init__(self, name: str, n: int, d: int) -> None:
        defense, settings = DEFENSES[name]
        self.noise = np.random.default_rng(SEED).standard_normal((NUM_NOISES, d), dtype=np.float32)
        built = build_defense(defense, d, settings, server_lr=SERVER_LR, seed=SEED)
        start = np.float32(0.05) * self.noise[0]
        self.machine = Machine(built, start, MachineSettings(server_lr=SERVER_LR))
        self.n, self.arrivals = n, 0
        self.clients = [self.machine.enrol(f"client-{k}") for k in range(n)]

    def arrive(self, count: int) -> tuple[float, list[float]]:
        """CPU seconds of so many arrivals together, and how long each took by the clock."""
        elapsed, params = [], self.machine.model.params
        deltas = [params + noise for noise in self.noise]  # making updates is the clients' work
        began = time.process_time()
        for _ in range(count):
            start = time.perf_counter()
            client: ClientId = self.clients[self.arrivals % self.n]
            self.machine.receive(self.machine.issue(client).number, deltas[self.arrivals % NUM_NOISES])
            self.arrivals += 1
            elapsed.append(time.perf_counter() - start)
        return time.process_time() - began, elapsed


def measure(n: int, d: int, arrivals: int) -> dict[str, Any]:
    names = [name for name in DEFENSES if name != "median" or n <= MAX_MEDIAN]
    federations = {name: Federation(name, n, d) for name in names}
    for name, federation in federations.items():
        federation.arrive({"asyncsgd": BLOCK, "median": n}.get(name, 5 * n))  # counts are going on
    seconds, counts, elapsed = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), list[float]()
    for _ in range(arrivals // BLOCK):
        for name, federation in federations.items():
            count = BLOCK if name != "median" else max(1, BLOCK // 50)
            spent, each = federation.arrive(count)
            seconds[name], counts[name] = seconds[name] + spent, counts[name] + count
            elapsed += each if name == "running mean" else []
    means = {name: seconds[name] / counts[name] for name in names}
    return {
        "clients": n,
        "parameters": d,
        "milliseconds": {name: 1e3 * mean for name, mean in means.items()},
        "times_asyncsgd": {name: mean / means["asyncsgd"] for name, mean in means.items()},
        "slowest_over_median": float(np.quantile(elapsed, 0.999) / np.median(elapsed)),
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(
        "clients",
        "parameters",
        *(f"{name}, times AsyncSGD" for name in list(DEFENSES)[1:]),
        "slowest of 1,000 / median",
    )
    for found in results:
        ratios = found["times_asyncsgd"]
        cells = [f"{ratios[name]:.1f}" if name in ratios else "-" for name in list(DEFENSES)[1:]]
        table.add_row(
            f"{found['clients']:,}", f"{found['parameters']:,}", *cells, f"{found['slowest_over_median']:.1f}"
        )
    Console().print(table)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """One arrival's CPU time over the number of clients, as multiples of AsyncSGD's."""
    from matplotlib.figure import Figure

    figure = Figure((6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, mark in zip(DEFENSES, "sov", strict=True):
        rows = [found for found in results if found["parameters"] == SIZES[0][1] and name in found["times_asyncsgd"]]
        axes.plot(
            [row["clients"] for row in rows], [row["times_asyncsgd"][name] for row in rows], f"-{mark}", label=name
        )
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="CPU time of an arrival / AsyncSGD's")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, nothing is written")
    quick = parser.parse_args().quick
    found = []
    for clients, parameters in QUICK if quick else SIZES:
        found.append(measure(clients, parameters, 1_000 if quick else 20_000 if parameters < 10_000 else 5_000))
        show(found[-1:])
    if not quick:
        write("arrival", SEED, found)
        draw(found, Path(__file__).parent.parent / "results" / "arrival.png")
