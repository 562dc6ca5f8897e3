"""The engines side by side: Flower's simulation and deployment, NVFlare's simulator and real processes.

    python benchmarks/engines.py             # all, 139,960 and 1,000,000 parameters, on an idle machine
    python benchmarks/engines.py --quick     # seconds instead of minutes, to see that it works; writes nothing

Each engine runs the same federation with a server step that does nothing and with SecureAFL's, in turn; on NVFlare also
with a history in half precision. Clients do next to nothing. The server knows 50 clients. Every client always has
exactly one model, so the round trip is the number of clients over the updates per second. CPU-seconds are those of all
processes together. Results go to results/engines.json and results/engines.png.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
APP = Path(__file__).parent / "engine_app"
sys.path[:0] = [str(ROOT), str(APP)]

from _common import write  # noqa: E402
from engine_app.measure import HALF, STEPS  # noqa: E402
from engine_app.nvflare_server import MeasuringServer  # noqa: E402
from tests.end_to_end import flower_processes, nvflare_processes  # noqa: E402

from secureafl.engines.nvflare import AsyncClient, federation_recipe  # noqa: E402

NUM_KNOWN = 50
NUM_SITES = 4
DIMS = (139_960, 1_000_000)
TIMEOUT = 1800.0


@dataclass(frozen=True)
class Plan:
    """How long each phase lasts and how often it is repeated."""

    seconds: float
    repeats: int

    def arguments(self, dim: int, num_clients: int) -> dict[str, Any]:
        """For NVFlare's measuring server."""
        return {
            "dim": dim,
            "num_clients": num_clients,
            "num_known": max(1, NUM_KNOWN - num_clients),
            "phase_seconds": self.seconds,
            "repeats": self.repeats,
            "steps": [*STEPS, HALF],
        }

    def run_config(self, dim: int, num_nodes: int) -> dict[str, Any]:
        """For the measuring app on Flower."""
        return {
            "dim": dim,
            "num-known": max(1, NUM_KNOWN - num_nodes),
            "secureafl.min-nodes": num_nodes,
            "phase-seconds": self.seconds,
            "repeats": self.repeats,
        }


def flower_simulation(dim: int, plan: Plan, directory: Path) -> str:
    with flower_processes.Simulation(directory) as engine:
        return engine.run(APP, plan.run_config(dim, NUM_SITES), num_supernodes=NUM_SITES, timeout=TIMEOUT).log_text()


def flower_deployment(dim: int, plan: Plan, directory: Path) -> str:
    with flower_processes.Deployment(directory) as engine:
        engine.start_nodes({index: {"delay": 0.0} for index in range(NUM_SITES)})
        return engine.run(APP, plan.run_config(dim, NUM_SITES), timeout=TIMEOUT).log_text()


def nvflare_simulator(dim: int, plan: Plan, directory: Path) -> str:
    arguments = json.dumps(plan.arguments(dim, NUM_SITES))
    script = APP / "engine_app" / "nvflare_simulation.py"
    return nvflare_processes.simulate(script, directory, [arguments], timeout=TIMEOUT)


def nvflare_processes_run(dim: int, plan: Plan, directory: Path) -> str:
    sites = [f"site-{index + 1}" for index in range(NUM_SITES)]
    client = AsyncClient("engine_app.nvflare_server:train")
    server = MeasuringServer(**plan.arguments(dim, NUM_SITES))
    recipe = federation_recipe("measure", server, client, files=[APP / "engine_app"], min_clients=NUM_SITES)
    with nvflare_processes.Deployment(directory, sites) as deployment:
        deployment.start_sites(*sites)
        deployment.wait(deployment.submit(recipe), timeout=TIMEOUT)
        return deployment.full_log(nvflare_processes.SERVER)


ENGINES: dict[str, Callable[[int, Plan, Path], str]] = {
    "Flower, simulation": flower_simulation,
    "Flower, deployment": flower_deployment,
    "NVFlare, simulator": nvflare_simulator,
    "NVFlare, real processes": nvflare_processes_run,
}


def measured(log: str) -> dict[str, Any]:
    [line] = [line for line in log.splitlines() if "MEASURED {" in line]
    return dict(json.loads(line[line.index("MEASURED {") + len("MEASURED ") :]))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    rates = {step: statistics.median(values) for step, values in found["rates"].items()}
    return {
        "updates_per_second": rates,
        "round_trip_seconds": {step: NUM_SITES / rate for step, rate in rates.items()},
        "cpu_seconds_per_update": {step: statistics.median(values) for step, values in found["cpu"].items()},
        "ratio": {step: rate / rates["bare"] for step, rate in rates.items() if step != "bare"},
        "all_rates": found["rates"],
    }


def table(results: dict[str, dict[str, Any]], dim: int) -> Table:
    made = Table(title=f"{NUM_SITES} clients, {NUM_KNOWN} known, {dim:,} parameters")
    columns = ("engine", "updates/s bare", "SecureAFL", "ratio", "half precision", "round trip, s", "CPU-s per update")
    for column in columns:
        made.add_column(column, justify="left" if column == "engine" else "right")
    for engine, result in results.items():
        rates, trips = result["updates_per_second"], result["round_trip_seconds"]
        made.add_row(
            engine,
            f"{rates['bare']:.2f}",
            f"{rates['secureafl']:.2f}",
            f"{result['ratio']['secureafl']:.3f}",
            f"{result['ratio'][HALF]:.3f}" if HALF in result["ratio"] else "",
            f"{trips['secureafl']:.3f}",
            f"{result['cpu_seconds_per_update']['secureafl']:.3f}",
        )
    return made


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, (dim, engines) in zip(figure.subplots(1, len(results), sharey=True), results.items(), strict=True):
        for offset, step in enumerate(STEPS):
            rates = [result["updates_per_second"][step] for result in engines.values()]
            axes.barh([place + 0.4 * offset for place in range(len(rates))], rates, height=0.4, label=step)
        axes.set(title=f"{dim} parameters", xlabel="updates per second", xscale="log")
        axes.set_yticks([place + 0.2 for place in range(len(engines))], list(engines))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(STEPS))
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="engines whose name contains this")
    chosen = parser.parse_args()
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for dim in DIMS[:1] if chosen.quick else DIMS:
        results[f"{dim:,}"] = {}
        for name, run in ENGINES.items():
            if chosen.only not in name:
                continue
            deployed = name == "Flower, deployment"  # a new process per message: seconds per round trip
            plan = Plan(45.0 if deployed else 15.0, 3)
            if chosen.quick:
                plan = Plan(20.0 if deployed else 3.0, 1)
            with tempfile.TemporaryDirectory() as directory:
                results[f"{dim:,}"][name] = summary(measured(run(dim, plan, Path(directory) / "engine")))
        Console().print(table(results[f"{dim:,}"], dim))
    if not chosen.quick and not chosen.only:
        path = write("engines", 0, results)
        draw(results, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
