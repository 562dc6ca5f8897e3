"""All cells of a table. Finished ones are skipped, unfinished ones go on where they stopped.

    <out>/cells/<cell id>/    one directory per cell (see `experiment`); recipes share them
    <out>/<name>.json         which cells belong to the sweep, and the file it was read from, if it was
    <out>/<name>.parquet      all their curves

Nothing is kept in memory that a restart would miss: the driver and its workers may be killed at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from secureafl.errors import SecureAFLError
from secureafl.files import save_json
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.earlier_names import RESULT, read_result
from secureafl.lab.cells.experiment import SNAPSHOT, RunSettings
from secureafl.lab.cells.results import save_table
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes import find_recipe
from secureafl.lab.sweeps.sweep_files import parse_sweep
from secureafl.lab.sweeps.sweep_progress import SweepProgress
from secureafl.lab.sweeps.workers import run_cells

CELLS = "cells"


def run_sweep(
    name: str,
    cells: Sequence[CellSettings],
    out_dir: Path,
    *,
    jobs: int | None = None,
    run: RunSettings = RunSettings(),
    console: Console | None = None,
    wanted: Callable[[CellSettings], bool] = lambda cell: True,
    text: str = "",
) -> list[dict[str, Any]]:
    """Run those cells that are `wanted`, and return the results of all that are finished, in their order.

    A cell that fails is reported at the end; the others are not lost. `text` is the recipe's. Without a console nothing
    is shown.
    """
    console = console or Console(quiet=True)
    store = out_dir / CELLS
    store.mkdir(parents=True, exist_ok=True)
    unique = {cell.cell_id(): cell for cell in cells}
    save_json(out_dir / f"{name}.json", {"recipe": name, "cells": list(unique), **({"text": text} if text else {})})
    chosen = {key: cell for key, cell in unique.items() if wanted(cell)}
    forget_unseen(chosen, store)
    waiting = {key: cell for key, cell in chosen.items() if not (store / key / RESULT).exists()}
    with SweepProgress(console, name, chosen, waiting) as progress:
        failures = run_cells(waiting, store, jobs=jobs, run=run, observer=progress)
    if failures:
        raise SecureAFLError("\n".join(f"cell {key} failed: {error}" for key, error in failures.items()))
    finished = [key for key in unique if (store / key / RESULT).exists()]
    curves = [pq.read_table(store / key / "curves.parquet") for key in finished]
    save_table(out_dir / f"{name}.parquet", pa.concat_tables(curves))
    return [read_result(store / key) for key in finished]


def forget_unseen(cells: Mapping[str, CellSettings], store: Path) -> None:
    """Remove the results of cells whose code may have changed unseen: they are run anew."""
    for key, cell in cells.items():
        if cell.has_changed_unseen:
            for name in (RESULT, SNAPSHOT):
                (store / key / name).unlink(missing_ok=True)


def read_recipe(out_dir: Path, name: str) -> Recipe:
    """The recipe of a sweep that was run before."""
    path = out_dir / f"{name}.json"
    text = json.loads(path.read_text()).get("text") if path.exists() else None
    return find_recipe(name) if text is None else parse_sweep(text, name)


def read_sweep(out_dir: Path, name: str) -> list[dict[str, Any]]:
    """The results of a sweep's finished cells, those of any other seed beside them."""
    cells, store = json.loads((out_dir / f"{name}.json").read_text())["cells"], out_dir / CELLS
    results = {path.parent.name: read_result(path.parent) for path in store.glob(f"*/{RESULT}")}
    groups: dict[str, list[dict[str, Any]]] = {_but_seed(results[key]): [] for key in cells if key in results}
    for result in sorted(results.values(), key=lambda one: int(one["settings"]["seed"])):
        if (group := _but_seed(result)) in groups:
            groups[group].append(result)
    return [result for group in groups.values() for result in group]


def _but_seed(result: dict[str, Any]) -> str:
    """What two results have in common that differ in the seed alone."""
    return json.dumps({**result["settings"], "seed": None, "code": result.get("code")}, sort_keys=True)
