"""The server: pre-trains a base model if none is named, runs each scenario, then shows a table and a picture."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console
from rich.table import Table

from secureafl.engines.flower import read_run_config, run_federation
from secureafl.engines.pytorch import load_trainable, trainable_state
from secureafl.server import Result
from verses.base import pretrain
from verses.plot import draw
from verses.scenario import Scenario
from verses.settings import AppSettings
from verses.task import evaluate

NODE_PATIENCE = 30.0  # seconds
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every scenario that the run config lists."""
    config, console = context.run_config, Console(width=110)
    settings, scenarios = AppSettings.read(config), Scenario.read_all(str(config["scenarios"]))
    wait_for_nodes(grid, read_run_config(config).min_nodes)
    if not settings.model:
        console.print(f"Base model: {pretrain(settings.pretraining, console.print)}", soft_wrap=True, highlight=False)
    model, tokenizer = settings.load()
    first = trainable_state(model)
    num_frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    console.print(f"Federated: {sum(array.numel() for array in first.values()):,} values; frozen: {num_frozen:,}")

    def measure(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
        load_trainable(model, arrays)
        return evaluate(model, tokenizer, settings.training.length, settings.trigger)

    results: dict[Scenario, Result] = {}
    for scenario in scenarios:
        console.rule(str(scenario))
        results[scenario] = run_federation(
            grid,
            first,
            read_run_config(config, defense=scenario.defense),
            evaluate=measure,
            train_config=scenario.train_config(config),
            console=console,
        )
    console.print(summary(results))
    console.print(f"Picture: {draw(results, Path(str(config['plot'])))}", soft_wrap=True, highlight=False)


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
    table = Table(title="New Testament, adapters of a language model, asynchronous")
    for column in ("scenario", "updates", "seconds", "rejected", "held-out loss", "trigger success"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for scenario, result in results.items():
        accepted = sum(n for (_, reason), n in result.verdicts.items() if reason in {"accepted", "first-contact"})
        last = result.evaluations[-1].metrics
        table.add_row(
            str(scenario),
            str(result.version),
            f"{result.seconds:.0f}",
            str(result.version - accepted),
            f"{last['loss']:.3f}",
            f"{last['trigger']:.2f}",
        )
    return table
