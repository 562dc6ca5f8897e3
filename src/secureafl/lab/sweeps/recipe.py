"""What a recipe is: which cells a table or figure has, and how it is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from secureafl.lab.cells.cell import CellSettings

Cells = list[CellSettings]
SHORTEST = 8
"""In a table that is made shorter, so many arrivals at least lie between two evaluations, unless fewer than five
evaluations were left: one takes as long as dozens of arrivals."""


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    about   what it shows
    make    its cells for one seed
    row     what tells its rows (or, in a figure, points along the x axis) apart: a setting, dotted if nested, or
            several with commas; the first may be `method` or `settings`, which tell SecureAFL's compositions apart
    within  a setting: rows are compared with those that have the same value, as with others the task is another
    layout  `table`: rows by attack; `lines`: one panel per attack, one line per defense, x = row;
            `error` and `time`: their own small tables
    paper   where the paper's figures for it stand in `paper_results.json`
    text    the TOML file it was read from; empty for the laboratory's own
    """

    about: str
    make: Callable[[], Cells]
    row: str = "defense"
    within: str = ""
    layout: Literal["table", "lines", "error", "time"] = "table"
    paper: tuple[str, ...] = ()
    text: str = ""

    def cells(self, seeds: Sequence[int] = (0,), **changes: Any) -> Cells:
        """Its cells, for each of these seeds and with these changes."""
        made = self.make()
        return [changed(cell, {**changes, "seed": seed}) for cell in made for seed in seeds]


def changed(cell: CellSettings, changes: Mapping[str, Any]) -> CellSettings:
    """The cell with other values; when its length changes, evaluations are spread anew unless told otherwise."""
    values = cell.model_dump()
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, Mapping) else value
    if values["rounds"] != cell.rounds and "evaluate_every" not in changes:
        spread = values["evaluate_every"] * values["rounds"] // cell.rounds
        values["evaluate_every"] = max(1, spread, min(SHORTEST, values["rounds"] // 5))
    return CellSettings(**values)
