"""How long is one round of training with SecureAFL, compared with plain asynchronous SGD?

    python benchmarks/round.py

A round is a client's gradient (the paper's network, batch 32, random images) and the server's whole step, through the
same machine. 50 clients, all known and with full memory. The defenses take turns; times are minima and medians.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from _common import write
from rich.console import Console
from rich.table import Table

from secureafl import ClientId, Machine, MachineSettings, build_defense
from secureafl.lab.simulation.task import Task

SEED, NUM_CLIENTS, SERVER_LR, BATCH = 0, 50, 0.01, 32
DEFENSES = {
    "asyncsgd": ("asyncsgd", {}),
    "secureafl": ("secureafl", {}),
    "secureafl, half precision": ("secureafl", {"history_dtype": "float16"}),
    "with the Hessian product": ("secureafl", {"correction": "calibrated"}),
    "with it, half precision": ("secureafl", {"correction": "calibrated", "history_dtype": "float16"}),
}


class Rounds:
    def __init__(self, name: str, settings: dict[str, object], task: Task) -> None:
        params = task.initial(SEED)
        defense = build_defense(name, params.size, settings, server_lr=SERVER_LR)
        self.machine = Machine(defense, params, MachineSettings(server_lr=SERVER_LR))
        self.task, self.rng = task, np.random.default_rng(SEED)
        self.images = self.rng.integers(256, size=(512, 1, 28, 28), dtype=np.uint8)
        self.labels = self.rng.integers(10, size=512)
        for k in range(NUM_CLIENTS):
            self.machine.enrol(str(k))
        self.count = 0

    def run(self) -> float:
        client = ClientId(self.count % NUM_CLIENTS)
        batch = self.rng.integers(512, size=BATCH)
        start = time.perf_counter()
        ticket = self.machine.issue(client)
        params = self.machine.model_of(ticket).params
        gradient = self.task.gradient(params, self.images[batch], self.labels[batch])
        self.machine.receive(ticket.number, gradient)
        self.count += 1
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    task = Task("cnn", 10, (1, 28, 28))
    contestants = {label: Rounds(name, settings, task) for label, (name, settings) in DEFENSES.items()}
    for rounds in contestants.values():
        for _ in range(4 * NUM_CLIENTS):
            rounds.run()
    times: dict[str, list[float]] = {label: [] for label in contestants}
    for _ in range(args.rounds):
        for label, rounds in contestants.items():
            times[label].append(rounds.run())
    results = {
        label: {
            "milliseconds": 1e3 * min(values),
            "median_milliseconds": 1e3 * float(np.median(values)),
            "times_asyncsgd": min(values) / min(times["asyncsgd"]),
            "median_times_asyncsgd": float(np.median(values) / np.median(times["asyncsgd"])),
        }
        for label, values in times.items()
    }
    table = Table("defense", "ms", "x asyncsgd", "x asyncsgd (medians)", title=f"One round, {NUM_CLIENTS} clients")
    for label, row in results.items():
        ratio, middle = f"{row['times_asyncsgd']:.2f}", f"{row['median_times_asyncsgd']:.2f}"
        table.add_row(label, f"{row['milliseconds']:.1f}", ratio, middle)
    Console().print(table)
    print(write("round", SEED, results))


if __name__ == "__main__":
    main()
