"""The `secureafl` command."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from secureafl import __version__
from secureafl.defenses import DEFENSES, Entry
from secureafl.lab.cli import app as lab
from secureafl.settings import nearest

app = typer.Typer(
    name="secureafl",
    help="Asynchronous federated learning that stays right when some clients lie.",
    epilog="Start with: secureafl defenses",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(lab, name="lab")
console = Console()


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"secureafl {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Asynchronous federated learning that stays right when some clients lie."""


@app.command()
def defenses(
    name: Annotated[str | None, typer.Argument(help="Show this defense and its settings.")] = None,
) -> None:
    """List the defenses, or show one with its settings."""
    if name is None:
        console.print(_overview())
        console.print("One with its settings: [bold]secureafl defenses NAME[/bold]")
        return
    if name not in DEFENSES:
        console.print(f"There is no defense {name!r}; {nearest(name, list(DEFENSES))}", style="red")
        raise typer.Exit(2)
    console.print(_settings_table(name))


def _overview() -> Table:
    table = Table(title="Defenses")
    table.add_column("name", style="bold")
    table.add_column("what it does")
    table.add_column("needs trusted data")
    for name, entry in DEFENSES.items():
        needs = "yes" if {"reference", "score"} & set(entry.needs) else "no"
        table.add_row(name, _summary(entry), needs)
    return table


def _settings_table(name: str) -> Table:
    entry = DEFENSES[name]
    table = Table(title=f"{name}: {_summary(entry)}", title_justify="left", show_lines=True)
    for column in ("setting", "default", "meaning"):
        table.add_column(column, style="bold" if column == "setting" else None, overflow="fold")
    for key, field in entry.settings.model_fields.items():
        table.add_row(key, str(field.default), " ".join((field.description or "").split()))
    if not entry.settings.model_fields:
        table.add_row("none", "", "There is nothing to set.")
    return table


def _summary(entry: Entry) -> str:
    """What the defense's own file says of it in its opening paragraph."""
    opening = (inspect.getmodule(entry.settings).__doc__ or "").split("\n\n")[0]
    return " ".join(opening.split()).partition(": ")[2]
