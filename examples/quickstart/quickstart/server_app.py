"""The server: the same clients under each scenario, one after another, then a table and a picture."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console
from rich.table import Table

from quickstart import task
from quickstart.plot import Curve, draw
from quickstart.scenario import Scenario
from secureafl.engines.flower import read_run_config, run_federation
from secureafl.server import Result

NODE_PATIENCE = 30.0  # seconds
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every scenario that the run config lists."""
    config, console = context.run_config, Console(width=110)
    wait_for_nodes(grid, read_run_config(config).min_nodes)
    results: dict[Scenario, Result] = {}
    for scenario in Scenario.read_all(str(config["scenarios"])):
        console.rule(str(scenario))
        results[scenario] = run_federation(
            grid,
            task.initial_model(int(config["seed"])).state_dict(),
            scenario.settings(config),
            evaluate=task.accuracy,
            train_config=scenario.train_config(config),
            console=console,
        )
    console.print(summary(results))
    curves = {
        scenario: Curve([done.version for done in result.evaluations], accuracies(result))
        for scenario, result in results.items()
    }
    console.print(f"Picture: {draw(curves, Path(str(config['plot'])))}", soft_wrap=True, highlight=False)


def wait_for_nodes(grid: Grid, num_nodes: int) -> None:
    """Virtual nodes are there at once or never; SuperNodes may need a moment."""
    deadline = time.monotonic() + NODE_PATIENCE
    while (found := len(list(grid.get_node_ids()))) < num_nodes:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{found} nodes are here, {num_nodes} are expected. In simulation, add --federation-config "
                f'"num-supernodes={num_nodes} client-resources-num-cpus=1" to flwr run. In a deployment, start more '
                f'SuperNodes, or expect fewer with --run-config "secureafl.min-nodes={found}".'
            )
        time.sleep(1.0)


def summary(results: dict[Scenario, Result]) -> Table:
    """One row per scenario."""
    table = Table(title="Fashion-MNIST, asynchronous")
    for column in ("scenario", "updates", "seconds", "rejected", "best accuracy", "final accuracy"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for scenario, result in results.items():
        accepted = sum(n for (_, reason), n in result.verdicts.items() if reason in {"accepted", "first-contact"})
        table.add_row(
            str(scenario),
            str(result.version),
            f"{result.seconds:.0f}",
            str(result.version - accepted),
            f"{max(accuracies(result)):.3f}",
            f"{accuracies(result)[-1]:.3f}",
        )
    return table


def accuracies(result: Result) -> list[float]:
    """Every accuracy measured, in order."""
    return [done.metrics["accuracy"] for done in result.evaluations]
