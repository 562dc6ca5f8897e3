"""What does one arrival cost, from ticket to new model: for how many clients, and for how many parameters?

    python benchmarks/arrival.py [--quick]

AsyncSGD, the default (running mean) and the default of 0.1 (median) behind the machine, side by side in one run: they
take turns in blocks of arrivals, and CPU time of the process is counted, of all threads. Averages include all that is
done now and then, such as counting who is alike. Everyone is honest, and has a whole vote after one update, so that
large federations are warm soon. On a shared machine only ratios mean something. Needs 12 GB of memory.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Table, main

from secureafl import ClientId, Machine, MachineSettings, Vector
from secureafl.defenses import build_defense

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 0
SERVER_LR = 1e-6  # the model hardly moves: what is measured is the work, and nobody is to be rejected
DEFENSES: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncsgd": ("asyncsgd", {}),
    "running mean": ("secureafl", {"full_vote_after": 1}),
    "median": ("secureafl", {"aggregate": "median"}),
}
SIZES = {
    "clients": [(n, 10_000) for n in (50, 300, 1_000, 3_000, 10_000, 100_000)],
    "parameters": [(50, 10_000), (50, 139_960), (50, 1_000_000), (20, 10_000_000), (4, 100_000_000)],
}
QUICK = {"clients": [(20, 5_000), (200, 5_000)], "parameters": [(20, 2_000)]}
MAX_MEDIAN = 3_000
"""The median is not measured with more clients: an arrival would take seconds."""


class Federation:
    """A machine and its clients, which come in turn."""

    def __init__(self, name: str, n: int, start: Vector) -> None:
        defense, settings = DEFENSES[name]
        built = build_defense(defense, len(start), settings, server_lr=SERVER_LR, seed=SEED)
        self.machine = Machine(built, start, MachineSettings(server_lr=SERVER_LR))
        self.n, self.arrivals = n, 0
        self.clients = [self.machine.enrol(f"client-{k}") for k in range(n)]

    def arrive(self, deltas: list[Vector], count: int) -> float:
        """CPU seconds of so many arrivals together."""
        began = time.process_time()
        for _ in range(count):
            client: ClientId = self.clients[self.arrivals % self.n]
            self.machine.receive(self.machine.issue(client).number, deltas[self.arrivals % len(deltas)])
            self.arrivals += 1
        return time.process_time() - began


def measure_one(n: int, d: int, most: int) -> dict[str, Any]:
    block, arrivals = max(1, min(100, 20_000_000 // d)), min(most, 700_000_000 // d)
    noise = np.random.default_rng(SEED).standard_normal((7 if d < 10_000_000 else 2, d), dtype=np.float32)
    start = np.float32(0.05) * noise[0]
    deltas = [start + one for one in noise]  # making updates is the clients' work
    names = [name for name in DEFENSES if name != "median" or n <= MAX_MEDIAN]
    federations = {name: Federation(name, n, start) for name in names}
    for name, federation in federations.items():
        federation.arrive(deltas, {"asyncsgd": block, "median": n}.get(name, 5 * n))  # counts are going on
    seconds, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for _ in range(arrivals // block):
        for name, federation in federations.items():
            count = block if name != "median" else max(1, block // 50)
            seconds[name] += federation.arrive(deltas, count)
            counts[name] += count
    means = {name: seconds[name] / counts[name] for name in names}
    return {
        "clients": n,
        "parameters": d,
        "milliseconds": {name: 1e3 * mean for name, mean in means.items()},
        "times_asyncsgd": {name: mean / means["asyncsgd"] for name, mean in means.items()},
    }


def measure(quick: bool) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"clients": [], "parameters": []}
    for along, sizes in (QUICK if quick else SIZES).items():
        for clients, parameters in sizes:
            found[along].append(measure_one(clients, parameters, 1_000 if quick else 20_000))
            print(found[along][-1], flush=True)
    return found


def tables(results: dict[str, list[dict[str, Any]]]) -> list[Table]:
    return [table(along, rows) for along, rows in results.items()]


def table(along: str, rows: list[dict[str, Any]]) -> Table:
    columns = ("clients", "parameters", "the default, times AsyncSGD", '`aggregate = "median"`, times AsyncSGD')
    cells = []
    for row in rows:
        ratios = row["times_asyncsgd"]
        found = (ratios.get(name) for name in ("running mean", "median"))
        shown = ("-" if ratio is None else f"{ratio:,.{1 if ratio < 100.0 else 0}f}" for ratio in found)
        cells.append((f"{row['clients']:,}", f"{row['parameters']:,}", *shown))
    return Table(columns, cells, f"With the number of {along}")


def draw(results: dict[str, list[dict[str, Any]]]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((9.6, 3.6), layout="constrained")
    for axes, (along, rows) in zip(figure.subplots(1, 2, sharey=True), results.items(), strict=True):
        for name, mark in zip(DEFENSES, "sov", strict=True):
            shown = [row for row in rows if name in row["times_asyncsgd"]]
            label = {"asyncsgd": "AsyncSGD", "running mean": "SecureAFL, the default"}.get(name, f"SecureAFL, {name}")
            values = [row["times_asyncsgd"][name] for row in shown]
            axes.plot([row[along] for row in shown], values, f"-{mark}", label=label)
        axes.set(xscale="log", yscale="log", xlabel=along)
        axes.grid(alpha=0.3)
    figure.axes[0].set(ylabel="CPU time of an arrival / AsyncSGD's")
    figure.axes[0].set_title("10,000 parameters", fontsize="medium")
    figure.axes[1].set_title("50 clients; 20 at 10 million, 4 at 100 million", fontsize="medium")
    figure.axes[1].legend()
    caption = "CPU time of one arrival over the number of clients and of parameters, as multiples of AsyncSGD's."
    return figure, caption


if __name__ == "__main__":
    main(__doc__, "arrival", measure, tables, draw, seed=SEED)
