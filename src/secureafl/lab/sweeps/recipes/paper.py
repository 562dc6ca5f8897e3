"""The paper's tables and figures, and the figures printed in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, Literal

from secureafl.defenses import PAPER, PAPER_VARIANTS
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.sweeps.recipe import Cells, Recipe
from secureafl.lab.sweeps.recipes.compared import ATTACKS, DEFENSES, LOOK_ALIKES, MEDIAN, NEW_ATTACKS
from secureafl.lab.sweeps.recipes.tuning import TUNED

REGRESSION_ATTACKS = ("none", "sign_flip", "gaussian", "min_max", "adaptive")
TIMED = ("asyncsgd", "zenopp", "aflguard", "secureafl")


def main(dataset: str) -> Callable[[], Cells]:
    attacks = REGRESSION_ATTACKS if dataset == "udacity" else ATTACKS
    # The paper leaves out Sageflow here: a regression has no predictive entropy to judge by.
    defenses = [name for name in DEFENSES if not (dataset == "udacity" and name == "sageflow")]
    labels: Literal["fine", "coarse"] = (
        "coarse" if dataset == "cifar100" else "fine"
    )  # diverged rows of the paper read 0.95 = 1 - 1/20

    def make() -> Cells:
        rows = [(defense, TUNED.get(defense, {})) for defense in defenses]
        if dataset == "fashion-mnist":
            rows.append(("secureafl", PAPER))
        cells = [
            CellSettings(
                dataset=dataset, labels=labels, defense=defense, attack=attack, defense_settings=dict(settings)
            )
            for defense, settings in rows
            for attack in attacks
        ]
        if dataset == "fashion-mnist":
            cells += [CellSettings(attack=attack, **LOOK_ALIKES[attack]) for attack in NEW_ATTACKS]
        return cells

    return make


def percentile() -> Cells:
    return [
        CellSettings(defense="secureafl", attack=attack, defense_settings={"percentile": percentile})
        for percentile in (0.4, 0.5, 0.6, 0.8, 0.9)
        for attack in ATTACKS
    ]


def variants() -> Cells:
    settings = [*({**MEDIAN, **changes} for changes in PAPER_VARIANTS.values()), dict(MEDIAN)]
    return [
        CellSettings(defense="secureafl", attack=attack, defense_settings=changes)
        for changes in settings
        for attack in ATTACKS
    ]


def estimation_error() -> Cells:
    return [
        CellSettings(
            defense="secureafl",
            rounds=2000,
            evaluate_every=25,
            num_estimated=10,
            num_test=2000,
            defense_settings={**MEDIAN, **changes, "correction": correction},
        )
        for changes in ({}, PAPER)
        for correction in ("calibrated", "bounded", "raw", "none")
    ]


def running_time() -> Cells:
    return [
        CellSettings(defense=defense, rounds=10 * num_clients, num_clients=num_clients, num_test=1000)
        for num_clients in (50, 100, 300)
        for defense in TIMED
    ]


@cache
def paper_results() -> dict[str, Any]:
    """The figures printed in the paper."""
    text = resources.files(__package__).joinpath("paper_results.json").read_text()
    return dict(json.loads(text))


def paper_table(recipe: Recipe) -> Any:
    """The paper's figures for a recipe, or None where it prints none."""
    if not recipe.paper:
        return None
    table: Any = paper_results()
    for key in recipe.paper:
        table = table[key]
    return table
