"""`secureafl lab`: run one experiment, sweep a table, draw a report.

Nothing heavy is imported until a command runs, so `secureafl --help` stays quick and works without the laboratory.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from secureafl.errors import SettingsError
from secureafl.fitted import PlainConsole
from secureafl.settings import read_assignments

if TYPE_CHECKING:
    from secureafl.lab.cells.cell import CellSettings

app = typer.Typer(
    help="Experiments: attacks, data sets, the paper's tables.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
console = PlainConsole()

NEEDED = ("torch", "matplotlib", "pyarrow", "PIL", "threadpoolctl")
OUT = Path("results/lab")

Out = Annotated[Path, typer.Option(help="Folder for results.")]
Source = Annotated[
    str | None, typer.Option(metavar="FOLDER|hub", help="Where data sets are; SECUREAFL_DATA by default.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as defense_settings.percentile=0.6."),
]
Device = Annotated[str, typer.Option(help="Where gradients are computed: cpu, cuda, cuda:1.")]
SnapshotRounds = Annotated[int, typer.Option(min=1, help="Rounds between two snapshots to go on from.")]


@app.callback()
def main() -> None:
    """Experiments: attacks, data sets, the paper's tables."""


@app.command()
def run(
    dataset: Annotated[
        str, typer.Option(help="fashion-mnist, cifar10, cifar100, tiny-imagenet, udacity or king-james.")
    ] = "fashion-mnist",
    defense: Annotated[
        str,
        typer.Option(help="Which defense judges updates; `secureafl defenses` lists them. MODULE:NAME for your own."),
    ] = "secureafl",
    attack: Annotated[
        str,
        typer.Option(
            help="What malicious clients send, one in five: none, label_flip, sign_flip, gaussian, scaling, dba, pgd, "
            "neurotoxin, threedfed, min_max, adaptive, hold, apart, mimic, imitate, flood or whitewash. MODULE:NAME "
            "for your own."
        ),
    ] = "none",
    rounds: Annotated[int | None, typer.Option(help="Arrivals; the data set's number by default.")] = None,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.")] = 0,
    architecture: Annotated[str | None, typer.Option(help="The model; the data set's by default.")] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            help="How data are dealt: paper, dirichlet, iid, time-blocks, or minority, where few clients hold a class "
            "that no one else has. MODULE:FUNCTION for your own."
        ),
    ] = None,
    source: Source = None,
    settings: Set = None,
    device: Device = "cpu",
    snapshot_rounds: SnapshotRounds = 2000,
    record: Annotated[
        Path | None, typer.Option(help="Also keep a journal here, for `secureafl audit`, `replay` and `eject`.")
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:TARGET",
            help="Also send metrics to tensorboard:DIR, mlflow:URI or wandb:DIR; may be repeated.",
        ),
    ] = None,
    out: Out = OUT,
) -> None:
    """Run one experiment; end with a table and a picture.

    For example: `secureafl lab run --attack scaling --rounds 400 --record runs/lab`
    """
    _check_packages()
    given: dict[str, Any] = {"rounds": rounds, "architecture": architecture, "partition": partition, "source": source}
    chosen = {key: value for key, value in given.items() if value is not None}
    from secureafl import lab

    values = {"dataset": dataset, "defense": defense, "attack": attack, "seed": seed, **chosen}
    result = lab.run(
        out=out,
        record=record,
        device=device,
        sinks=sink or (),
        snapshot_rounds=snapshot_rounds,
        own_process=True,
        console=console,
        **values | read_assignments(settings or []),
    )
    console.print(result)
    console.print(f"Picture: [bold]{result.save_plot()}[/]", soft_wrap=True, highlight=False)


@app.command()
def sweep(
    recipe: Annotated[
        str | None, typer.Argument(help="Which table or figure; --list shows them. Or a TOML file of your own.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the recipes and what they cost.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Cells at a time; one core each.")] = os.cpu_count() or 1,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions; the paper has five.")] = 1,
    rounds: Annotated[int | None, typer.Option(help="Shorten every cell to so many arrivals.")] = None,
    defense: Annotated[list[str] | None, typer.Option(help="Only this defense; may be repeated.")] = None,
    attack: Annotated[list[str] | None, typer.Option(help="Only this attack; may be repeated.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row of the table; may be repeated.")] = None,
    source: Source = None,
    settings: Set = None,
    device: Device = "cpu",
    snapshot_rounds: SnapshotRounds = 2000,
    out: Out = OUT,
) -> None:
    """Run all cells of the table or figure RECIPE. Stopped or killed, the same command goes on where it was.

    For example: `secureafl lab sweep main-fashion-mnist --defense secureafl --attack sign_flip`, or a grid of your own:
    `secureafl lab sweep mine.toml`
    """
    _check_packages()
    if show or recipe is None:
        console.print(_overview())
        return
    changes = {key: value for key, value in {"rounds": rounds, "source": source}.items() if value is not None}
    from secureafl import lab

    def wanted(cell: CellSettings, its_row: str) -> bool:
        named = (not defense or cell.defense in defense) and (not attack or cell.attack in attack)
        return named and (not row or its_row in row)

    results = lab.sweep(
        recipe,
        seeds=seeds,
        wanted=wanted,
        out=out,
        device=device,
        snapshot_rounds=snapshot_rounds,
        jobs=jobs,
        console=console,
        **changes | read_assignments(settings or []),
    )
    console.print(results)
    console.print(f"A report with plots: [bold]secureafl lab report {results.name} --out {out}[/]", soft_wrap=True)


@app.command()
def report(
    recipe: Annotated[
        str | None, typer.Argument(help="A table or figure that was swept before, finished or not.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    out: Out = OUT,
) -> None:
    """Draw what was swept of RECIPE, finished or not: a self-contained HTML page, and its plots as PNG and PDF."""
    if (recipe is None) != everything:
        raise SettingsError("say which table or figure, or --all")
    _check_packages()
    from secureafl.lab.reports.write import write_report, write_reports
    from secureafl.lab.sweeps.sweep_files import sweep_name

    for page in write_reports(out) if recipe is None else [write_report(out, sweep_name(recipe))]:
        console.print(f"Report: [bold]{page}[/]", soft_wrap=True, highlight=False)


def _check_packages() -> None:
    """What is missing is said at once, not after hours."""
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _overview() -> Table:
    from secureafl.lab.sweeps.recipes import RECIPES

    table = Table(title="Recipes")
    for column in ("name", "what it shows", "cells", "rounds"):
        table.add_column(
            column,
            style="bold" if column == "name" else None,
            no_wrap=column != "what it shows",
            justify="right" if column in {"cells", "rounds"} else "left",
        )
    for name, recipe in RECIPES.items():
        cells = recipe.cells()
        table.add_row(name, recipe.about, str(len(cells)), f"{sum(cell.rounds for cell in cells):,}")
    return table
