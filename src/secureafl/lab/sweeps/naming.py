"""How a table names and orders its rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from secureafl.defenses import PAPER, PAPER_VARIANTS, SecureAFLSettings, find_defense
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes.compared import ATTACKS, MEDIAN


def in_order(attacks: Iterable[str]) -> list[str]:
    """Each of these attacks once, in the order of the paper's tables; those it does not have come last."""
    return sorted(dict.fromkeys(attacks), key=lambda name: ATTACKS.index(name) if name in ATTACKS else len(ATTACKS))


def row_of(recipe: Recipe, settings: Mapping[str, Any]) -> str:
    """Which row of the recipe's table a cell with these (complete) settings belongs to."""
    own, defense = settings["defense_settings"], str(settings["defense"])
    if recipe.row == "variant":
        variants = {name: _complete({**MEDIAN, **changes}) for name, changes in PAPER_VARIANTS.items()}
        return next((name for name, full in variants.items() if own.items() <= full.items()), "secureafl")
    if recipe.row == "regions":
        return regions_row(defense, settings["protocol_settings"])
    first, *others = recipe.row.split(", ")
    if first == "method":
        name = f"{defense}-paper" if reads_literally(settings) else defense
    elif first == "settings":
        name = described(defense, own)
    else:
        name = str(setting(settings, first))
    values = {key: setting(settings, key) for key in others}
    named = [f"{key.rpartition('.')[2]}={value}" for key, value in values.items() if value is not None]
    return ", ".join([name, *named])


def regions_row(below: str, own: Mapping[str, Any]) -> str:
    """Who judges clients, who judges regions, and where the malicious clients are."""
    gathered_in, num_regions = own["malicious_regions"], own["num_regions"]
    where = "spread" if gathered_in is None else f"in {gathered_in} of {num_regions} regions"
    return f"{below}, top {own['top_defense']}, {where}"


def setting(settings: Mapping[str, Any], key: str) -> Any:
    """The value of a setting, dotted if nested; None where there is no such setting."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part)
        if value is None:
            return None
    return value


def method_of(settings: Mapping[str, Any]) -> str:
    """Who judges in a cell with these (complete) settings: SecureAFL is told apart by its settings, if they differ."""
    defense = str(settings["defense"])
    return described(defense, settings["defense_settings"]) if defense == "secureafl" else defense


def reads_literally(settings: Mapping[str, Any]) -> bool:
    """Whether a cell with these (complete) settings runs SecureAFL as the paper's text has it."""
    own = settings["defense_settings"]
    return settings["defense"] == "secureafl" and all(own[key] == value for key, value in PAPER.items())


def described(defense: str, own: Mapping[str, Any]) -> str:
    """A defense by how its settings differ from its defaults; SecureAFL's from those of 0.1 or the paper, if nearer."""
    bases = {defense: find_defense(defense).settings().model_dump(mode="json")}
    if defense == "secureafl":
        bases |= {"secureafl-median": _complete(MEDIAN), "secureafl-paper": _complete(PAPER)}
    differences = {
        name: {key: value for key, value in own.items() if value != base[key] and key != "num_classes"}
        for name, base in bases.items()
    }
    name = min(differences, key=lambda name: len(differences[name]))
    return ", ".join([name, *(f"{key}={value}" for key, value in differences[name].items())])


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All of SecureAFL's settings, as a cell has them."""
    return SecureAFLSettings(**settings).model_dump(mode="json")
