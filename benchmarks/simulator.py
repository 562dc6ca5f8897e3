"""What the simulator itself costs: the share of a round outside the client's gradient and the defense's step.

That is the machine, which moves the model and keeps its versions, and the simulator proper: draws, batches, the trace.

    python benchmarks/simulator.py                 # 50 clients, the paper's CNN, two defenses
    python benchmarks/simulator.py --rounds 500

Measured in processor time, so that other programs on the machine do not count. Needs Fashion-MNIST.
Results go to results/simulator.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # as in a sweep's workers; read when NumPy is loaded

from _common import write  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from secureafl import Defense, Model, Update, Verdict  # noqa: E402
from secureafl.lab.cells.build import build  # noqa: E402
from secureafl.lab.cells.cell import CellSettings  # noqa: E402
from secureafl.lab.simulation.task import make_deterministic  # noqa: E402
from secureafl.types import Array, StateDict  # noqa: E402

SEED = 0
WARM_UP = 120
LIMIT = 0.05


class Timed:
    """A defense with a stopwatch around its step."""

    def __init__(self, defense: Defense, clock: Callable[[], float]) -> None:
        self._defense = defense
        self._clock = clock
        self.seconds = 0.0

    def step(self, update: Update, model: Model) -> Verdict:
        start = self._clock()
        verdict = self._defense.step(update, model)
        self.seconds += self._clock() - start
        return verdict

    def state_dict(self) -> StateDict:
        return self._defense.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._defense.load_state_dict(state)


def measure(defense: str, rounds: int) -> dict[str, Any]:
    """Milliseconds per round, by where they went, after everyone has been heard of and every kernel compiled."""
    simulation = build(CellSettings(defense=defense), time.process_time).simulation
    for _ in range(WARM_UP):
        simulation.step()
    timed = Timed(simulation.machine.defense, time.process_time)
    simulation.machine.defense = timed
    watch = simulation.stopwatch
    before = (watch.total, watch.gradient, watch.server)
    for _ in range(rounds):
        simulation.step()
    total, gradient, server = watch.total - before[0], watch.gradient - before[1], watch.server - before[2]
    own = total - gradient - timed.seconds
    parts = {"round": total, "gradient": gradient, "defense": timed.seconds}
    parts |= {"machine": server - timed.seconds, "simulator": total - gradient - server}
    return {f"{key}_ms": 1000 * value / rounds for key, value in parts.items()} | {"share": own / total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--defense", nargs="+", default=["asyncsgd", "secureafl"])
    options = parser.parse_args()
    make_deterministic()
    found = {defense: measure(defense, options.rounds) for defense in options.defense}
    table = Table(title=f"One round, 50 clients, 139,960 parameters, mean of {options.rounds}")
    for column in ("defense", "gradient", "defense's step", "machine", "simulator", "round", "overhead"):
        table.add_column(column, justify="left" if column == "defense" else "right")
    for defense, parts in found.items():
        columns = [f"{parts[f'{key}_ms']:.3f} ms" for key in ("gradient", "defense", "machine", "simulator", "round")]
        verdict = "green" if parts["share"] < LIMIT else "red"
        table.add_row(defense, *columns, f"[{verdict}]{parts['share']:.1%}[/]")
    Console().print(table)
    print(write("simulator", SEED, found))


if __name__ == "__main__":
    main()
