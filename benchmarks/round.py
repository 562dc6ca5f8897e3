"""How long is one round of training with SecureAFL, compared with plain asynchronous SGD?

    python benchmarks/round.py [--quick]

A round is a client's gradient (the paper's network, batch 32, random images) and the server's whole step, through the
same machine. 50 clients, all known. The defenses take turns; compared are medians by the clock, and means of the
process's time on all processors, which others on the machine disturb less. The goal for the default is 1.3.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Table, in_turns, main

from secureafl import ClientId, Machine, MachineSettings, build_defense
from secureafl.defenses.secureafl import PAPER
from secureafl.lab.simulation.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED, NUM_CLIENTS, SERVER_LR, BATCH = 0, 50, 0.01, 32
ROUNDS, QUICK_ROUNDS = 200, 3
GOAL = 1.3
ASYNCSGD = "AsyncSGD"
DEFENSES: dict[str, tuple[str, dict[str, Any]]] = {
    ASYNCSGD: ("asyncsgd", {}),
    "the default": ("secureafl", {}),
    '`aggregate = "median"`': ("secureafl", {"aggregate": "median"}),
    "the published algorithm": ("secureafl", dict(PAPER)),
}


class Rounds:
    def __init__(self, name: str, settings: dict[str, Any], task: Task) -> None:
        params = task.initial(SEED)
        defense = build_defense(name, params.size, settings, server_lr=SERVER_LR)
        self.machine = Machine(defense, params, MachineSettings(server_lr=SERVER_LR))
        self.task, self.rng = task, np.random.default_rng(SEED)
        self.images = self.rng.integers(256, size=(512, 1, 28, 28), dtype=np.uint8)
        self.labels = self.rng.integers(10, size=512)
        for k in range(NUM_CLIENTS):
            self.machine.enrol(str(k))
        self.count = 0

    def run(self) -> None:
        ticket = self.machine.issue(ClientId(self.count % NUM_CLIENTS))
        batch = self.rng.integers(512, size=BATCH)
        params = self.machine.model_of(ticket).params
        self.machine.receive(ticket.number, self.task.gradient(params, self.images[batch], self.labels[batch]))
        self.count += 1


def measure(quick: bool) -> dict[str, Any]:
    task = Task("cnn", 10, (1, 28, 28))
    contestants = {label: Rounds(name, settings, task) for label, (name, settings) in DEFENSES.items()}
    for rounds in contestants.values():
        for _ in range(3 if quick else 5 * NUM_CLIENTS):  # until everyone's pairs are there
            rounds.run()
    spent = in_turns({label: rounds.run for label, rounds in contestants.items()}, QUICK_ROUNDS if quick else ROUNDS)
    clock = {label: statistics.median(each.clock for each in times) for label, times in spent.items()}
    processor = {label: statistics.mean(each.processor for each in times) for label, times in spent.items()}
    return {
        "rounds": len(spent[ASYNCSGD]),
        "goal": GOAL,
        "milliseconds": {label: 1e3 * seconds for label, seconds in clock.items()},
        "processor_milliseconds": {label: 1e3 * seconds for label, seconds in processor.items()},
        "times_asyncsgd": {label: seconds / clock[ASYNCSGD] for label, seconds in clock.items()},
        "processor_times_asyncsgd": {label: seconds / processor[ASYNCSGD] for label, seconds in processor.items()},
    }


def tables(results: dict[str, Any]) -> list[Table]:
    kinds = ("milliseconds", "times_asyncsgd", "processor_times_asyncsgd")
    clock, times, processor = (results[kind] for kind in kinds)
    columns = ("", "milliseconds", "times AsyncSGD", "times AsyncSGD, processor")
    rows = [(label, f"{clock[label]:.1f}", f"{times[label]:.2f}", f"{processor[label]:.2f}") for label in clock]
    return [Table(columns, rows)]


def draw(results: dict[str, Any]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    figure = Figure((7.2, 2.9), layout="constrained")
    axes = figure.subplots()
    labels = [label.replace("`", "") for label in results["times_asyncsgd"]]
    for offset, (kind, label) in enumerate((("", "by the clock"), ("processor_", "processor time"))):
        values = list(results[f"{kind}times_asyncsgd"].values())
        bars = axes.barh([place + 0.4 * offset for place in range(len(values))], values, height=0.4, label=label)
        axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(results["goal"], color="black", linestyle="--", label=f"goal for the default: {results['goal']}")
    axes.set_yticks([place + 0.2 for place in range(len(labels))], labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="one round of training / AsyncSGD's")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    caption = "One round of training with the paper's network, gradient and server's step, as multiples of AsyncSGD's."
    return figure, caption


if __name__ == "__main__":
    main(__doc__, "round", measure, tables, draw, seed=SEED)
