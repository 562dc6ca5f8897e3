"""A sweep of the user's own, from a TOML file.

    about = "how long may a client lag?"    # optional

    [base]                                  # any settings of a cell
    rounds = 1000

    [grid]                                  # a list for each setting that varies: all combinations are run
    attack = ["none", "sign_flip"]
    protocol_settings.speed = ["uniform", "pareto"]

    [[cells]]                               # optional: each of these at every point of the grid
    defense = "asyncsgd"

It becomes a recipe whose name is the file's stem. A setting of a part has a dot. Columns of its table are attacks; a
row is a defense and whatever else varies.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from secureafl.errors import SettingsError
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes import RECIPES, find_recipe
from secureafl.settings import Settings, nested

SUFFIX = ".toml"
COLUMNS = ("attack", "seed")
"""What tells cells of one row apart."""


class SweepFile(Settings):
    """What such a file may hold."""

    about: str = ""
    """What the sweep shows, for the title of its table."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell."""
    grid: dict[str, Any] = Field(default_factory=dict)
    """A list of values for each setting that varies."""
    cells: list[dict[str, Any]] = Field(default_factory=lambda: [dict[str, Any]()])
    """Settings that go together: each is run at every point of the grid."""


def find_sweep(given: str) -> tuple[str, Recipe]:
    """The name and the recipe of a sweep: one of `RECIPES`, or a TOML file of the user's own."""
    name = sweep_name(given)
    if name == given:
        return name, find_recipe(name)
    if name in RECIPES:
        raise SettingsError(f"{given}: {name} is a recipe of the laboratory; give the file another name")
    return name, parse_sweep(Path(given).read_text(), given)


def sweep_name(given: str) -> str:
    """The name of a sweep: of a recipe as it is, of a file its stem."""
    return Path(given).stem if given.endswith(SUFFIX) else given


def parse_sweep(text: str, name: str) -> Recipe:
    """The recipe that a file of this text stands for; `name` is for messages."""
    try:
        file = SweepFile(**(json.loads(text) if text.startswith("{") else tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name} is no TOML: {error}") from error
    return grid_recipe(file, name, text)


def grid_recipe(file: SweepFile, name: str, text: str = "") -> Recipe:
    """The recipe of a grid. `name` is for messages; `text` is the file's, if it was read from one, and else JSON."""
    points = [{**flat(file.base), **flat(cell), **point} for cell in file.cells for point in _points(file.grid, name)]
    if any("seed" in point for point in points):
        raise SettingsError(f"{name}: leave seed out; --seeds 3 repeats every cell with three of them")
    varied = [key for key in _keys(points) if len({str(point.get(key)) for point in points}) > 1]
    row = ", ".join(dict.fromkeys(["defense", *(key for key in varied if key not in COLUMNS)]))
    about = file.about or f"{len(points)} cells"
    return Recipe(
        about, lambda: [CellSettings(**nested(point)) for point in points], row=row, text=text or file.model_dump_json()
    )


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The table with a dotted key for each value of a table in it."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{prefix}{key}".replace("-", "_")
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def _points(grid: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Every combination of the grid's values, the first setting varying slowest."""
    lists = flat(grid)
    for key, values in lists.items():
        if not isinstance(values, list) or not values:
            raise SettingsError(f"{name}: {key} in [grid] needs a list of values; put a single one into [base]")
    for values in itertools.product(*lists.values()):
        point = dict(zip(lists, values, strict=True))
        yield {inner: value for key, found in point.items() for inner, value in flat({key: found}).items()}


def _keys(points: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for point in points for key in point))
