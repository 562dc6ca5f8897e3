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
    from secureafl.lab.api.cell_results import CellResult, Results, compare, open_cell, open_sweep
    from secureafl.lab.api.run_and_sweep import run, sweep
    from secureafl.lab.api.run_record import RunRecord, open_record
    from secureafl.lab.cells.cell import CellSettings
    from secureafl.lab.sweeps.recipes import RECIPES

_HOMES: Mapping[str, str] = {
    "RECIPES": "secureafl.lab.sweeps.recipes",
    "CellResult": "secureafl.lab.api.cell_results",
    "CellSettings": "secureafl.lab.cells.cell",
    "Results": "secureafl.lab.api.cell_results",
    "RunRecord": "secureafl.lab.api.run_record",
    "compare": "secureafl.lab.api.cell_results",
    "open_cell": "secureafl.lab.api.cell_results",
    "open_record": "secureafl.lab.api.run_record",
    "open_sweep": "secureafl.lab.api.cell_results",
    "run": "secureafl.lab.api.run_and_sweep",
    "sweep": "secureafl.lab.api.run_and_sweep",
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
