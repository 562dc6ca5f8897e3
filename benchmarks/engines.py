"""The engines side by side: updates per second with a server step that does nothing, and with the default.

    python benchmarks/engines.py             # on an idle machine: about forty minutes; goes on where it was stopped
    python benchmarks/engines.py --quick     # one engine for some seconds, to see that it works; writes nothing

Flower's simulation and deployment, NVFlare's simulator and real processes; 139,960 and 1,000,000 parameters; 4 clients
and, where they are threads or share worker processes, 50. Fifty real nodes would need more memory than two cores have.
Flower's deployment is measured as Flower starts it, and with nodes that were started by `secureafl warm`.

Both steps take turns in one run. Each turn of one is compared with the turn of the other beside it; the ratio is the
median of these, and stands with the smallest and the largest. Clients do next to nothing, and always hold one model, so
the round trip is the number of clients over the updates per second. The ratio of CPU compares processor time per
update, of all processes together. Results go to results/engines.json, the figure to results/engines.png.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
APP = Path(__file__).parent / "engine_app"
sys.path[:0] = [str(ROOT), str(APP)]

from _common import RESULTS, Table, about, main, write  # noqa: E402
from engine_app.measure import STEPS  # noqa: E402
from engine_app.nvflare_server import MeasuringServer  # noqa: E402
from tests.end_to_end import flower_processes, nvflare_processes  # noqa: E402

from secureafl.engines.nvflare import AsyncClient, federation_recipe  # noqa: E402

KEPT = RESULTS / "engines.json"
NUM_KNOWN = 50
DIMS = (139_960, 1_000_000)
TIMEOUT = 1800.0


@dataclass(frozen=True)
class Plan:
    """One measurement: how large, and how long each step has its turn."""

    dim: int
    num_clients: int
    seconds: float
    repeats: int

    @property
    def num_others(self) -> int:
        """Clients that the server knows and that send nothing now."""
        return max(1, NUM_KNOWN - self.num_clients)

    def arguments(self) -> dict[str, Any]:
        """For NVFlare's measuring server."""
        return {
            "dim": self.dim,
            "num_clients": self.num_clients,
            "num_known": self.num_others,
            "phase_seconds": self.seconds,
            "repeats": self.repeats,
        }

    def run_config(self) -> dict[str, Any]:
        """For the measuring app on Flower."""
        return {
            "dim": self.dim,
            "num-known": self.num_others,
            "secureafl.min-nodes": self.num_clients,
            "phase-seconds": self.seconds,
            "repeats": self.repeats,
        }


def flower_simulation(plan: Plan, directory: Path) -> str:
    with flower_processes.Simulation(directory) as engine:
        return engine.run(APP, plan.run_config(), num_supernodes=plan.num_clients, timeout=TIMEOUT).log_text()


def flower_deployment(plan: Plan, directory: Path, *, warm: tuple[str, ...] | None = None) -> str:
    with flower_processes.Deployment(directory, warm=warm) as engine:
        engine.start_nodes({index: {"delay": 0.0} for index in range(plan.num_clients)})
        return engine.run(APP, plan.run_config(), timeout=TIMEOUT).log_text()


def nvflare_simulator(plan: Plan, directory: Path) -> str:
    script = APP / "engine_app" / "nvflare_simulation.py"
    return nvflare_processes.simulate(script, directory, [json.dumps(plan.arguments())], timeout=TIMEOUT)


def nvflare_deployment(plan: Plan, directory: Path) -> str:
    sites = [f"site-{index + 1}" for index in range(plan.num_clients)]
    client = AsyncClient("engine_app.nvflare_server:train")
    server = MeasuringServer(**plan.arguments())
    recipe = federation_recipe("measure", server, client, files=[APP / "engine_app"], min_clients=plan.num_clients)
    with nvflare_processes.Deployment(directory, sites) as deployment:
        deployment.start_sites(*sites)
        deployment.wait(deployment.submit(recipe), timeout=TIMEOUT)
        return deployment.full_log(nvflare_processes.SERVER)


@dataclass(frozen=True)
class Engine:
    """How an engine is run; for each number of clients, for how many seconds a step has its turn, and how often."""

    run: Callable[[Plan, Path], str]
    turns: Mapping[int, tuple[float, int]] = field(default_factory=lambda: {4: (6.0, 6), 50: (16.0, 4)})

    def plans(self) -> Iterable[Plan]:
        return (Plan(dim, number, *turns) for dim in DIMS for number, turns in self.turns.items())


ENGINES: dict[str, Engine] = {
    "Flower, simulation": Engine(flower_simulation),
    "Flower, deployment": Engine(flower_deployment, {4: (48.0, 3)}),  # seconds for a round trip
    "Flower, deployment, warm": Engine(
        partial(flower_deployment, warm=flower_processes.OF_THE_TEST_APP), {4: (30.0, 3)}
    ),
    "NVFlare, simulator": Engine(nvflare_simulator),
    "NVFlare, real processes": Engine(nvflare_deployment, {4: (6.0, 6)}),
}
QUICK = "NVFlare, simulator"


def measured(log: str) -> dict[str, Any]:
    [line] = [line for line in log.splitlines() if "MEASURED {" in line]
    return dict(json.loads(line[line.index("MEASURED {") + len("MEASURED ") :]))


def summary(name: str, plan: Plan, found: dict[str, Any]) -> dict[str, Any]:
    rates = {step: statistics.median(values) for step, values in found["rates"].items()}
    cpu = {step: statistics.median(values) for step, values in found["cpu"].items()}
    ratios = sorted(ours / bare for bare, ours in zip(*(found["rates"][step] for step in STEPS), strict=True))
    return {
        "engine": name,
        "clients": plan.num_clients,
        "parameters": plan.dim,
        "updates_per_second": rates,
        "cpu_seconds_per_update": cpu,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ratio": cpu["bare"] / cpu["secureafl"],
        "all_rates": found["rates"],
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    """A measurement that is kept already, and is of this commit, is not made again."""
    commit = about()["commit"]
    rows = [] if quick or not KEPT.exists() else json.loads(KEPT.read_text())["results"]
    rows = [row for row in rows if row["commit"] == commit]
    for name, engine in {QUICK: ENGINES[QUICK]}.items() if quick else ENGINES.items():
        for plan in [Plan(DIMS[0], 4, 2.0, repeats=1)] if quick else engine.plans():
            if (name, plan.num_clients, plan.dim) in {
                (row["engine"], row["clients"], row["parameters"]) for row in rows
            }:
                continue
            with tempfile.TemporaryDirectory() as directory:
                row = summary(name, plan, measured(engine.run(plan, Path(directory) / "engine")))
            rows.append({**row, "commit": commit})
            if not quick:
                write("engines", 0, rows)
    return sorted(rows, key=lambda row: (row["parameters"], list(ENGINES).index(row["engine"]), row["clients"]))


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    columns = (
        "engine",
        "clients",
        "bare, updates per second",
        "with SecureAFL",
        "ratio",
        "of single turns",
        "round trip",
        "ratio of CPU",
    )
    return [
        Table(columns, [shown(row) for row in rows if row["parameters"] == dim], f"{dim:,} parameters")
        for dim in sorted({row["parameters"] for row in rows})
    ]


def shown(row: dict[str, Any]) -> tuple[str, ...]:
    rates = row["updates_per_second"]
    return (
        row["engine"],
        str(row["clients"]),
        f"{rates['bare']:.3g}",
        f"{rates['secureafl']:.3g}",
        f"{row['ratio']:.2f}",
        f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}",
        f"{row['clients'] / rates['secureafl']:.2g} s",
        f"{row['cpu_ratio']:.2f}",
    )


def draw(rows: list[dict[str, Any]]) -> tuple[Figure, str]:
    from matplotlib.figure import Figure

    dims = sorted({row["parameters"] for row in rows})
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    for place, (axes, dim) in enumerate(zip(figure.subplots(1, len(dims), squeeze=False)[0], dims, strict=True)):
        chosen = [row for row in rows if row["parameters"] == dim][::-1]
        for offset, step in enumerate(STEPS):
            rates = [row["updates_per_second"][step] for row in chosen]
            axes.barh([y - 0.4 * offset for y in range(len(rates))], rates, height=0.4, label=step)
        axes.set(title=f"{dim:,} parameters", xlabel="updates per second", xscale="log")
        names = [f"{row['engine']}, {row['clients']} clients" for row in chosen]
        axes.set_yticks([y - 0.2 for y in range(len(chosen))], names if place == 0 else [""] * len(names))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(STEPS))
    return (
        figure,
        "Updates per second of the engines, with a server step that does nothing (bare), and with SecureAFL.",
    )


if __name__ == "__main__":
    main(__doc__, "engines", measure, tables, draw)
