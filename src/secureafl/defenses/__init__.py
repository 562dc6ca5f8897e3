"""Every asynchronous defense, one file per published method, under one interface.

`DEFENSES` names them; `build_defense` makes one from a name and plain settings. A defense of the user's own is called
`module:Name`, or as the package that offers it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from secureafl.defenses.aflguard import AFLGuard, AFLGuardSettings
from secureafl.defenses.asyncdefender import AsyncDefender, AsyncDefenderSettings
from secureafl.defenses.asyncfilter import AsyncFilter, AsyncFilterSettings
from secureafl.defenses.asyncsgd import AsyncSGD, AsyncSGDSettings
from secureafl.defenses.base import Defense
from secureafl.defenses.basgd import BASGD, BASGDSettings
from secureafl.defenses.fedbuff import FedBuff, FedBuffSettings
from secureafl.defenses.kardam import Kardam, KardamSettings
from secureafl.defenses.sageflow import Sageflow, SageflowSettings
from secureafl.defenses.secureafl import PAPER, PAPER_VARIANTS, SecureAFL, SecureAFLSettings
from secureafl.defenses.trusted import Reference, Score, Scorer
from secureafl.defenses.zenopp import ZenoPP, ZenoPPSettings
from secureafl.errors import SettingsError
from secureafl.history import RowSettings
from secureafl.plugins import find_own, read_constructor, require_class
from secureafl.settings import Settings


class DefenseEntry(NamedTuple):
    """One defense: its class, its settings, and what its constructor needs beside them."""

    make: Callable[..., Defense]
    settings: type[Settings] = Settings
    """`Settings` itself for a constructor that takes none."""
    needs: tuple[str, ...] = ()
    """Any of `server_lr`, `seed`, `reference`, `score` and `rows`."""

    def build(self, name: str, dim: int, settings: Mapping[str, Any], given: Mapping[str, Any]) -> Defense:
        """The defense for a model of `dim` parameters; it takes of `given` what it needs. `name` is for messages."""
        for need in self.needs:
            if given[need] is None:
                raise SettingsError(f"defense {name!r} judges by the server's own trusted data: pass {need}=")
        own = self.settings(**settings)
        chosen = () if self.settings is Settings else (own,)
        return self.make(dim, *chosen, **{need: given[need] for need in self.needs})


DEFENSES: Mapping[str, DefenseEntry] = {
    "secureafl": DefenseEntry(SecureAFL, SecureAFLSettings, ("server_lr", "seed", "rows")),
    "asyncsgd": DefenseEntry(AsyncSGD, AsyncSGDSettings),
    "fedbuff": DefenseEntry(FedBuff, FedBuffSettings),
    "kardam": DefenseEntry(Kardam, KardamSettings),
    "basgd": DefenseEntry(BASGD, BASGDSettings),
    "sageflow": DefenseEntry(Sageflow, SageflowSettings, ("server_lr", "score")),
    "zenopp": DefenseEntry(ZenoPP, ZenoPPSettings, ("server_lr", "reference")),
    "aflguard": DefenseEntry(AFLGuard, AFLGuardSettings, ("reference",)),
    "asyncdefender": DefenseEntry(AsyncDefender, AsyncDefenderSettings),
    "asyncfilter": DefenseEntry(AsyncFilter, AsyncFilterSettings),
}
"""Every defense of this package by name."""


def find_defense(name: str) -> DefenseEntry:
    """The defense called `name`: built in, offered by an installed package, or `module:Name`."""
    return DEFENSES[name] if name in DEFENSES else defense_entry(name, find_own("defense", name, DEFENSES))


def defense_entry(name: str, found: object) -> DefenseEntry:
    """An entry for a class of the user's own, as its constructor says; an entry stays as it is."""
    if isinstance(found, DefenseEntry):
        return found
    made = require_class(name, found, "defense", ("step", "state_dict", "load_state_dict"))
    given = ("server_lr", "seed", "reference", "score")
    return DefenseEntry(made, *read_constructor(name, made, first=("dim",), given=given))


def build_defense(
    name: str,
    dim: int,
    settings: Mapping[str, Any] | None = None,
    *,
    server_lr: float = 1.0,
    seed: int = 0,
    reference: Reference | None = None,
    score: Scorer | None = None,
    rows: RowSettings = RowSettings(),
) -> Defense:
    """The defense called `name` for a model of `dim` parameters; `module:Name` for one of the user's own.

    settings   overrides of that defense's settings; an unknown key is an error
    server_lr  the server's learning rate, which Zeno++, Sageflow and SecureAFL take into account
    seed       secret, from which a defense's lots follow
    reference  gradient on trusted data, for Zeno++ and AFLGuard
    score      loss and entropy on trusted data, for Sageflow
    rows       where clients' rows lie, for SecureAFL
    """
    given = {"server_lr": server_lr, "seed": seed, "reference": reference, "score": score, "rows": rows}
    entry = find_defense(name)
    if rows.rows != "memory" and "rows" not in entry.needs:
        raise SettingsError(f"rows = {rows.rows!r} does nothing with defense {name!r}: it keeps no rows of clients")
    return entry.build(name, dim, settings or {}, given)


__all__ = [
    "BASGD",
    "DEFENSES",
    "PAPER",
    "PAPER_VARIANTS",
    "AFLGuard",
    "AFLGuardSettings",
    "AsyncDefender",
    "AsyncDefenderSettings",
    "AsyncFilter",
    "AsyncFilterSettings",
    "AsyncSGD",
    "AsyncSGDSettings",
    "BASGDSettings",
    "Defense",
    "DefenseEntry",
    "FedBuff",
    "FedBuffSettings",
    "Kardam",
    "KardamSettings",
    "Reference",
    "Sageflow",
    "SageflowSettings",
    "Score",
    "Scorer",
    "SecureAFL",
    "SecureAFLSettings",
    "ZenoPP",
    "ZenoPPSettings",
    "build_defense",
    "defense_entry",
    "find_defense",
]
