"""Run one cell, or all cells of a sweep. `secureafl lab run` and `secureafl lab sweep` call these functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from secureafl.defenses import DEFENSES
from secureafl.errors import SecureAFLError, SettingsError
from secureafl.lab.api.cell_results import OUT, CellResult, Results, open_cell
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.earlier_names import RESULT
from secureafl.lab.cells.experiment import RunSettings
from secureafl.lab.simulation.task import check_device
from secureafl.lab.sweeps.naming import row_of
from secureafl.lab.sweeps.recipe import Recipe, changed
from secureafl.lab.sweeps.recipes import RECIPES
from secureafl.lab.sweeps.sweep import CELLS, forget_unseen, run_sweep
from secureafl.lab.sweeps.sweep_files import SweepFile, find_sweep, flat, grid_recipe
from secureafl.lab.sweeps.sweep_progress import CellProgress
from secureafl.lab.sweeps.workers import run_cells
from secureafl.plugins import hold
from secureafl.server.report.sinks import check_sinks
from secureafl.settings import nested

BUILT_IN: Mapping[str, Mapping[str, Any]] = {"defense": DEFENSES, "attack": ATTACKS, "partition": {}}
"""Settings that name code, and what the package has under each."""


def run(
    cell: CellSettings | None = None,
    /,
    *,
    out: Path | str = OUT,
    record: Path | str | None = None,
    device: str = "cpu",
    sinks: Sequence[str] = (),
    snapshot_rounds: int = 2000,
    own_process: bool = False,
    console: Console | None = None,
    **settings: object,
) -> CellResult:
    """Run one experiment and return what came out. If `out` holds it already, it is read.

    cell             its settings; left out, those of Fashion-MNIST
    out              folder for results
    record           also keep a journal here, for `secureafl audit`, `replay` and `eject`
    device           where gradients are computed: `cpu`, `cuda`, `cuda:1`
    sinks            also send metrics to `tensorboard:DIR`, `mlflow:URI` or `wandb:DIR`
    snapshot_rounds  rounds between two snapshots, from which a run that was stopped goes on
    own_process      run in a process of its own; it then needs code that can be imported
    console          where progress is drawn; None draws none
    settings         any fields of `CellSettings`; they replace those of `cell`

    `defense`, `attack` and `partition` are names, or your own: a class, a function, or an attack that is made already.
    What was typed into a notebook has no file that could tell whether it changed, so such a cell is run every time.
    """
    check_sinks(sinks)
    check_device(device)
    values = nested(flat(_with_names(settings)))
    chosen = CellSettings(**values) if cell is None else changed(cell, values)
    key, store = chosen.cell_id(), Path(out) / CELLS
    forget_unseen({key: chosen}, store)
    finished = (store / key / RESULT).exists()
    if finished and (record is not None or sinks):
        what = "record it" if record is not None else "send its metrics"
        raise SettingsError(f"{out} already holds this experiment: {what} with another folder for results (out)")
    if not finished:
        options = RunSettings(
            device=device,
            snapshot_rounds=snapshot_rounds,
            record=Path(record).absolute() if record is not None else None,
            sinks=tuple(sinks),
        )
        label = f"{chosen.defense} x {chosen.attack}"
        with CellProgress(console or Console(quiet=True), label, chosen.rounds) as progress:
            jobs = 1 if own_process else None
            failures = run_cells({key: chosen}, store, jobs=jobs, run=options, observer=progress)
        if failures:
            raise SecureAFLError(failures[key])
    return open_cell(store / key)


def sweep(
    recipe: str | Path | None = None,
    /,
    *,
    grid: Mapping[str, Sequence[object]] | None = None,
    cells: Sequence[Mapping[str, object]] = ({},),
    name: str = "grid",
    about: str = "",
    seeds: int = 1,
    wanted: Callable[[CellSettings, str], bool] = lambda cell, row: True,
    out: Path | str = OUT,
    device: str = "cpu",
    snapshot_rounds: int = 2000,
    jobs: int | None = None,
    console: Console | None = None,
    **settings: object,
) -> Results:
    """Run all cells of a table, and return the results of those that are finished.

    Stopped or killed, the same call goes on where it was.

    recipe    one of `RECIPES`, or a TOML file; or leave it out and give a grid:
    grid      a list of values for each setting that varies: all combinations are run. A setting of a part has a dot,
              as in `defense_settings.percentile`
    cells     settings that go together: each is run at every point of the grid
    name      what the sweep of a grid is called in `out`
    about     what it shows, for the title of its table
    seeds     repetitions
    wanted    says of a cell and its row in the table whether to run it; the others stay for later
    jobs      processes at a time, one core each; they need code that can be imported. None runs all in this process
    settings  any fields of `CellSettings`, for all cells

    The others are those of `run`.
    """
    check_device(device)
    values = _with_names(settings)
    if recipe is not None:
        if grid is not None or tuple(cells) != ({},):
            raise SettingsError("a recipe has its own cells: leave grid and cells out, or the recipe")
        name, found = find_sweep(str(recipe))
        made = found.cells(range(seeds), **nested(flat(values)))
    else:
        found = _grid(grid or {}, cells, values, name, about)
        made = found.cells(range(seeds))
    run_sweep(
        name,
        made,
        Path(out),
        jobs=jobs,
        run=RunSettings(device=device, snapshot_rounds=snapshot_rounds),
        console=console,
        wanted=_checked(found, name, made, wanted),
        text=found.text,
    )
    store = Path(out) / CELLS
    keys = dict.fromkeys(cell.cell_id() for cell in made)
    finished = [open_cell(store / key) for key in keys if (store / key / RESULT).exists()]
    return Results(finished, found, name=name, out=Path(out))


def _grid(
    grid: Mapping[str, Sequence[object]],
    cells: Sequence[Mapping[str, object]],
    base: Mapping[str, object],
    name: str,
    about: str,
) -> Recipe:
    if name in RECIPES:
        raise SettingsError(f"{name} is a recipe of the laboratory; give the grid another name")
    holders: dict[str, object] = {}

    def named(kind: str, value: object) -> str:
        found = _name(kind, value)
        if holders.setdefault(found, value) is not value and not isinstance(value, str):
            raise SettingsError(
                f"two different objects are called {found}: rename one, or pass what differs as settings"
            )
        return found

    file = SweepFile(
        about=about,
        base=dict(base),
        grid={
            key: [named(key, one) for one in values] if key in BUILT_IN else list(values)
            for key, values in grid.items()
        },
        cells=[{key: named(key, one) if key in BUILT_IN else one for key, one in cell.items()} for cell in cells],
    )
    return grid_recipe(file, name)


def _checked(
    recipe: Recipe, name: str, cells: Sequence[CellSettings], wanted: Callable[[CellSettings, str], bool]
) -> Callable[[CellSettings], bool]:
    """`wanted` of a cell alone; nothing left to run is an error."""

    def chosen(cell: CellSettings) -> bool:
        return wanted(cell, row_of(recipe, cell.complete()))

    if not any(map(chosen, cells)):
        raise SettingsError(f"no cell of {name!r} is left; it has {len(recipe.cells())}")
    return chosen


def _with_names(settings: Mapping[str, object]) -> dict[str, object]:
    return {key: _name(key, value) if key in BUILT_IN else value for key, value in settings.items()}


def _name(kind: str, given: object) -> str:
    """The name of a defense, an attack or a partition that may be an object."""
    if isinstance(given, str):
        return given
    for name, entry in BUILT_IN[kind].items():
        if given is entry or given is entry.make:
            return name
    return hold(given)
