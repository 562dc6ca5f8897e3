"""What 0.1 called otherwise: whoever still writes an earlier name is told the present one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NoReturn

_ROOMS: Mapping[str, Mapping[str, str]] = {
    "secureafl": {
        "agreement": "defenses.secureafl.consensus",
        "gaps": "defenses.secureafl.estimate.gap_products",
        "lbfgs": "history.lbfgs",
        "likeness": "defenses.secureafl.collusion_by_lot",
        "lipschitz": "defenses.lipschitz",
        "mistakes": "cli.explain",
        "storage": "history",
    },
    "secureafl.defenses": {"Entry": "DefenseEntry"},
    "secureafl.engines": {"answers": "updates", "config": "engine_settings"},
    "secureafl.engines.flower": {
        "config": "app_settings",
        "nodes": "carrier",
        "records": "codec",
        "server_app": "app",
        "delta_answer": "delta_update",
        "gradient_answer": "gradient_update",
        "sign_answers": "sign_updates",
    },
    "secureafl.engines.nvflare": {
        "collab_client": "client",
        "collab_server": "app",
        "config": "app_settings",
        "messages": "codec",
        "sites": "carrier",
    },
    "secureafl.lab": {
        "build": "cells.build",
        "cell": "cells.cell",
        "evaluate": "cells.evaluate",
        "experiment": "cells.experiment",
        "figures": "reports.plots",
        "metrics": "cells.scores",
        "models": "simulation.models",
        "page": "reports.page",
        "progress": "sweeps.sweep_progress",
        "protocols": "simulation.protocols",
        "recipes": "sweeps.recipes",
        "recorder": "cells.recorder",
        "report": "reports.write",
        "results": "cells.results",
        "simulate": "simulation.simulate",
        "sweep": "sweeps.sweep",
        "sweep_figures": "reports.sweep_plots",
        "tables": "reports.tables",
        "task": "simulation.task",
        "trace": "simulation.trace",
        "trusted": "simulation.trusted_data",
        "types": "arrays",
        "workers": "sweeps.workers",
    },
    "secureafl.lab.attacks": {"Entry": "AttackEntry", "base": "attack"},
    "secureafl.lab.data": {"Recipe": "DatasetRecipe", "flower": "flower_partition", "recipes": "catalogue"},
    "secureafl.server": {
        "audit": "review.audit",
        "config": "federation_settings",
        "eject": "review.eject",
        "evaluation": "live.evaluation",
        "federation": "live.federation",
        "figures": "live.telemetry",
        "influence": "review.influence",
        "journal": "record.journal",
        "metrics": "report.prometheus",
        "progress": "report.progress",
        "recorded": "review.opened",
        "replay": "review.replay",
        "run": "record.run",
        "sinks": "report.sinks",
        "snapshots": "record.snapshots",
    },
    "secureafl.view.web": {"answers": "queries", "app": "routes"},
}
"""Of each room, its modules and, of a package, its public names: what 0.1 called them, and their present names."""

RENAMED = {f"{room}.{earlier}": f"{room}.{now}" for room, names in _ROOMS.items() for earlier, now in names.items()} | {
    "secureafl.lab.cli": "secureafl.cli.laboratory",
    "secureafl.lab.storage": "secureafl.files",
}


class _Guide:
    """`import` asks it last, for modules that do not exist and for names that a package does not have."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in RENAMED:
            raise ImportError(f"{name} is called {RENAMED[name]} since secureafl 0.2: see CHANGELOG.md")


class Formerly:
    """The earlier name of a class's member."""

    def __init__(self, present: str) -> None:
        self._present = present

    def __set_name__(self, owner: type, name: str) -> None:
        self._said = f"{owner.__name__}.{name} is called {owner.__name__}.{self._present} since secureafl 0.2"

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(self._said)


sys.meta_path.append(_Guide())
