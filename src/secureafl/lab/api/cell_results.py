"""What came out: of one cell, of a sweep, of cells that one wants to compare. As tables and as Matplotlib figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from rich.table import Table

from secureafl.errors import SettingsError
from secureafl.lab.cells.earlier_names import RESULT, read_result
from secureafl.lab.reports.plots import Cell, draw_cell, read_cell, save, title
from secureafl.lab.reports.sweep_plots import draw_overlay
from secureafl.lab.reports.write import cell_table, draw_all, html_table, sweep_table, write_report
from secureafl.lab.sweeps.naming import row_of, setting
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.sweep import CELLS, read_recipe, read_sweep
from secureafl.lab.sweeps.sweep_files import flat

if TYPE_CHECKING:
    import pandas as pd

OUT = Path("results/lab")
"""Folder for results, unless another is named."""

IDENTITY = ("dataset", "defense", "attack", "seed")
"""Settings that every table shows."""

METRICS = ("ter", "asr", "rmse", "worst_recall")
"""Metrics of a model on the test data."""


class CellResult:
    """What one finished experiment left behind."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        """Its folder: `result.json`, `curves.parquet`, `arrivals.parquet`."""
        if not (self.directory / RESULT).exists():
            raise SettingsError(f"{self.directory} holds no finished experiment: it has no {RESULT}")
        self.summary: Mapping[str, Any] = read_result(self.directory)
        """All of `result.json`: settings, metrics, detection, fairness, digests, timing, provenance."""

    @property
    def name(self) -> str:
        """A readable name, unique to its settings: that of its folder."""
        return str(self.summary["cell"])

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings, also those of defense, attack and protocol that were left at their defaults."""
        return dict(self.summary["settings"])

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        """Its numbers by name; `docs/reference/api/lab.md` says what each means.

        Errors are those of the published model, and with `newest_` in front those of the newest: means of the last five
        evaluations.
        """
        last, detection = self.summary["last"], self.summary["detection"]
        found = {name: last.get(f"published_{name}") for name in METRICS}
        found |= {f"newest_{name}": last.get(name) for name in METRICS}
        found |= {name: detection[name] for name in ("honest_accepted", "malicious_accepted")}
        found |= {f"rejection_{name}": detection[name] for name in ("precision", "recall")}
        found |= self.summary.get("fairness", {})
        found["rounds_per_second"] = self.summary["timing"]["rounds_per_second"]
        found["server_bytes"] = self.summary["server_bytes"]
        return {name: float(value) for name, value in found.items() if value is not None}

    @cached_property
    def curves(self) -> pa.Table:
        """Every evaluation, one row for each metric: round, metric, value."""
        return pq.read_table(self.directory / "curves.parquet").select(["round", "metric", "value"])

    @cached_property
    def arrivals(self) -> pa.Table:
        """One row for each arrival: round, client, malicious, accepted, reason, and what was measured of the update."""
        path = self.directory / "arrivals.parquet"
        if not path.exists():
            raise SettingsError(f"{self.directory} holds no arrivals.parquet: the file is large, and was not kept")
        table = pq.read_table(path)
        malicious = np.isin(table["client"].to_numpy(), np.array(self.summary["malicious"], np.int64))
        table = table.add_column(0, "round", pa.array(np.arange(1, len(malicious) + 1)))
        return table.add_column(2, "malicious", pa.array(malicious))

    @cached_property
    def drawn(self) -> Cell:
        """Its curves and arrivals as arrays, as plots need them."""
        return read_cell(self.directory)

    def plot(self) -> Figure:
        """Error over rounds, what the defense measured, and who was accepted, as a Matplotlib figure."""
        return draw_cell(self.drawn)

    def save_plot(self) -> Path:
        """The same as `picture.png` and `picture.pdf` in its folder; the first one's path."""
        return save(self.plot(), self.directory / "picture")

    def __rich__(self) -> Table:
        return cell_table(self.summary)

    def __repr__(self) -> str:
        return f"<CellResult {self.name}: {_shown(self.metrics)}>"


class Results(Sequence[CellResult]):
    """Finished cells and how they are laid out: those of a sweep, or such as one compares."""

    def __init__(self, cells: Iterable[CellResult], recipe: Recipe, *, name: str = "", out: Path | None = None) -> None:
        self._cells = list(cells)
        self._recipe = recipe
        self._out = out
        self.name = name
        """What the sweep is called; empty for cells that are compared."""

    @overload
    def __getitem__(self, place: int) -> CellResult: ...

    @overload
    def __getitem__(self, place: slice) -> Results: ...

    def __getitem__(self, place: int | slice) -> CellResult | Results:
        return self._with(self._cells[place]) if isinstance(place, slice) else self._cells[place]

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self._cells)

    def select(self, **settings: object) -> Results:
        """Only cells with these settings, as in `select(defense="secureafl", attack="sign_flip")`."""
        return self._with([cell for cell in self if all(_has(cell, key, value) for key, value in settings.items())])

    def table(self) -> pa.Table:
        """One row for each cell: what tells it from the others, and its metrics."""
        rows = [{**self._columns(cell), **cell.metrics, "cell": cell.name} for cell in self]
        names = list(dict.fromkeys(key for row in rows for key in row))
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})

    def curves(self) -> pa.Table:
        """All evaluations of all cells: what tells a cell from the others, round, metric, value."""
        tables = []
        for cell in self:
            table = cell.curves
            for place, (key, value) in enumerate(self._columns(cell).items()):
                table = table.add_column(place, key, pa.array([value] * len(table)))
            tables.append(table)
        return pa.concat_tables(tables, promote_options="permissive")

    def to_pandas(self) -> pd.DataFrame:
        """`table()` as a data frame. It needs pandas: `pip install "secureafl[pandas]"`."""
        return self.table().to_pandas()

    def plot(self) -> Figure:
        """The error of all cells over rounds in one panel, as a Matplotlib figure. Dashed: attack success rate."""
        return draw_overlay([cell.drawn for cell in self], [self._label(cell) for cell in self])

    def figures(self) -> dict[str, Figure]:
        """The figures of the report by name, such as `heat-map` and `curves`."""
        return {stem: figure for stem, _, figure in draw_all([cell.drawn for cell in self], self._recipe)}

    def write_report(self) -> Path:
        """Write the report of the whole sweep, as `secureafl lab report` does; its page's path."""
        if self._out is None:
            raise SettingsError("only a sweep has a report: these are single cells; use table() and plot()")
        return write_report(self._out, self.name)

    def __rich__(self) -> Table:
        return sweep_table(self.name or "Comparison", self._recipe, [cell.summary for cell in self])

    def _repr_html_(self) -> str:
        return html_table(self._recipe, [cell.summary for cell in self])

    def __repr__(self) -> str:
        lines = [f"  {self._label(cell)}: {_shown(cell.metrics)}" for cell in self]
        return "\n".join([f"<Results of {len(self)} cells>", *lines])

    def _with(self, cells: Iterable[CellResult]) -> Results:
        return Results(cells, self._recipe, name=self.name, out=self._out)

    @cached_property
    def _varied(self) -> list[str]:
        return varied([cell.settings for cell in self])

    def _columns(self, cell: CellResult) -> dict[str, Any]:
        """What tells this cell from the others."""
        return {key: setting(cell.settings, key) for key in dict.fromkeys([*IDENTITY, *self._varied])}

    def _label(self, cell: CellResult) -> str:
        """The same in a few words: only what differs, and the defense."""
        parts = [title(row_of(self._recipe, cell.settings))]
        if "attack" in self._varied:
            parts.append(title(cell.settings["attack"]))
        if "seed" in self._varied:
            parts.append(f"seed {cell.settings['seed']}")
        return ", ".join(parts)


def compare(*results: CellResult | Iterable[CellResult] | Path | str) -> Results:
    """Put finished cells beside each other: results, whole sweeps, or folders of cells.

    `table()` shows the settings in which they differ and their metrics, `plot()` their curves in one panel.
    """
    cells: list[CellResult] = []
    for one in results:
        if isinstance(one, str | Path):
            cells.append(open_cell(one))
        else:
            cells.extend([one] if isinstance(one, CellResult) else one)
    if not cells:
        raise SettingsError("there is nothing to compare: pass results of lab.run or lab.sweep, or folders of cells")
    keys = [key for key in varied([cell.settings for cell in cells]) if key not in IDENTITY]
    return Results(cells, Recipe(f"{len(cells)} cells", list, row=", ".join(["defense", *keys])))


def open_cell(directory: Path | str) -> CellResult:
    """A finished experiment, from its folder: `results/lab/cells/NAME`."""
    return CellResult(directory)


def open_sweep(name: str, out: Path | str = OUT) -> Results:
    """A sweep that was run before, finished or not, with other seeds of its cells if there are any."""
    recipe = read_recipe(Path(out), name)
    if not (Path(out) / f"{name}.json").exists():
        raise SettingsError(f"there is no sweep {name!r} in {out}; run: secureafl lab sweep {name} --out {out}")
    cells = [open_cell(Path(out) / CELLS / result["cell"]) for result in read_sweep(Path(out), name)]
    return Results(cells, recipe, name=name, out=Path(out))


def varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings, dotted if nested, that all of these have and in which some differ; where data are found is none."""
    tables = [flat(one) for one in settings]
    shared = [key for key in tables[0] if all(key in table for table in tables)] if tables else []
    return [key for key in shared if key != "source" and len({str(table[key]) for table in tables}) > 1]


def _has(cell: CellResult, key: str, value: object) -> bool:
    found = setting(cell.settings, key.replace("__", "."))
    return bool(
        found == value or (isinstance(found, str) and found.rpartition(":")[2] == getattr(value, "__name__", None))
    )


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {metrics[name]:.3f}" for name in METRICS[:3] if name in metrics)
