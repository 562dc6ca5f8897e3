"""Every asynchronous defense, one file per published method, under one interface.

`DEFENSES` names them; `build_defense` makes one from a name and plain settings.
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
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.settings import Settings, nearest


class DefenseEntry(NamedTuple):
    """One defense: its class, its settings, and what its constructor needs beside them."""

    make: Callable[..., Defense]
    settings: type[Settings]
    needs: tuple[str, ...] = ()


DEFENSES: Mapping[str, DefenseEntry] = {
    "secureafl": DefenseEntry(SecureAFL, SecureAFLSettings, ("server_lr", "seed")),
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
"""Every defense by name."""


def build_defense(
    name: str,
    dim: int,
    settings: Mapping[str, Any] | None = None,
    *,
    server_lr: float = 1.0,
    seed: int = 0,
    reference: Reference | None = None,
    score: Scorer | None = None,
) -> Defense:
    """The defense called `name` for a model of `dim` parameters.

    settings   overrides of that defense's settings; an unknown key is an error
    server_lr  the server's learning rate, which Zeno++, Sageflow and SecureAFL take into account
    seed       secret, from which a defense's lots follow
    reference  gradient on trusted data, for Zeno++ and AFLGuard
    score      loss and entropy on trusted data, for Sageflow
    """
    if name not in DEFENSES:
        raise UnknownSettingError(f"there is no defense {name!r}; {nearest(name, list(DEFENSES))}")
    entry = DEFENSES[name]
    given = {"server_lr": server_lr, "seed": seed, "reference": reference, "score": score}
    for need in entry.needs:
        if given[need] is None:
            raise SettingsError(f"defense {name!r} judges by the server's own trusted data: pass {need}=")
    return entry.make(dim, entry.settings(**(settings or {})), **{need: given[need] for need in entry.needs})


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
]
