"""The laboratory: data sets, models, attacks and experiments, from Python as from the command line.

    from secureafl import lab

    cell = lab.run(defense="secureafl", attack="sign_flip", rounds=1000)
    cell.metrics["ter"]
    cell.plot()

A name is loaded when it is first used, so that an attack can be imported without what draws and trains. Nothing outside
the laboratory imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secureafl.lab.api.record import RunRecord, open_record
    from secureafl.lab.api.results import CellResult, Results, compare, open_cell, open_sweep
    from secureafl.lab.api.running import run, sweep
    from secureafl.lab.cells.cell import CellSettings
    from secureafl.lab.sweeps.recipes import RECIPES

_HOMES: Mapping[str, str] = {
    "RECIPES": "secureafl.lab.sweeps.recipes",
    "CellResult": "secureafl.lab.api.results",
    "CellSettings": "secureafl.lab.cells.cell",
    "Results": "secureafl.lab.api.results",
    "RunRecord": "secureafl.lab.api.record",
    "compare": "secureafl.lab.api.results",
    "open_cell": "secureafl.lab.api.results",
    "open_record": "secureafl.lab.api.record",
    "open_sweep": "secureafl.lab.api.results",
    "run": "secureafl.lab.api.running",
    "sweep": "secureafl.lab.api.running",
}
"""Where each public name is defined."""

__all__ = [
    "RECIPES",
    "CellResult",
    "CellSettings",
    "Results",
    "RunRecord",
    "compare",
    "open_cell",
    "open_record",
    "open_sweep",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("secureafl"):
            raise
        message = f"secureafl.lab.{name} needs {error.name!r}; run: pip install 'secureafl[lab]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
