"""Every attack, one file each, under one interface: the published methods, and those written for this laboratory.

`ATTACKS` names them; `build_attack` makes one from a name and plain settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from secureafl.errors import UnknownSettingError
from secureafl.lab.attacks.adaptive import Adaptive, AdaptiveSettings
from secureafl.lab.attacks.apart import Apart, ApartSettings
from secureafl.lab.attacks.attack import Attack, Batch, ChangesNames, ChoosesPace, View, Watches
from secureafl.lab.attacks.dba import DBA, DBASettings
from secureafl.lab.attacks.flood import Flood, FloodSettings
from secureafl.lab.attacks.gaussian import Gaussian, GaussianSettings
from secureafl.lab.attacks.hold import Hold, HoldSettings
from secureafl.lab.attacks.imitate import Imitate, ImitateSettings
from secureafl.lab.attacks.label_flip import LabelFlip, LabelFlipSettings
from secureafl.lab.attacks.mimic import Mimic, MimicSettings
from secureafl.lab.attacks.min_max import MinMax, MinMaxSettings
from secureafl.lab.attacks.neurotoxin import Neurotoxin, NeurotoxinSettings
from secureafl.lab.attacks.pgd import PGD, PGDSettings
from secureafl.lab.attacks.scaling import Scaling, ScalingSettings
from secureafl.lab.attacks.sign_flip import SignFlip, SignFlipSettings
from secureafl.lab.attacks.threedfed import ThreeDFed, ThreeDFedSettings
from secureafl.lab.attacks.whitewash import Whitewash, WhitewashSettings
from secureafl.settings import Settings, nearest


class AttackEntry(NamedTuple):
    """One attack: its class, its settings, and what an experiment must know of it."""

    make: Callable[..., Attack]
    settings: type[Settings]
    is_backdoor: bool = False
    """Whether success is measured by the trigger (ASR) beside the error on clean images."""
    needs_classes: bool = False
    """Whether it needs a classification; a regression has no label to turn."""
    needs_shadow: bool = False
    """Whether it reads `View.shadow`, which costs a SecureAFL step per arrival when another defense runs."""


ATTACKS: Mapping[str, AttackEntry] = {
    "label_flip": AttackEntry(LabelFlip, LabelFlipSettings, needs_classes=True),
    "sign_flip": AttackEntry(SignFlip, SignFlipSettings),
    "gaussian": AttackEntry(Gaussian, GaussianSettings),
    "min_max": AttackEntry(MinMax, MinMaxSettings),
    "adaptive": AttackEntry(Adaptive, AdaptiveSettings, needs_shadow=True),
    "hold": AttackEntry(Hold, HoldSettings, needs_shadow=True),
    "scaling": AttackEntry(Scaling, ScalingSettings, is_backdoor=True, needs_classes=True),
    "dba": AttackEntry(DBA, DBASettings, is_backdoor=True, needs_classes=True),
    "pgd": AttackEntry(PGD, PGDSettings, is_backdoor=True, needs_classes=True),
    "neurotoxin": AttackEntry(Neurotoxin, NeurotoxinSettings, is_backdoor=True, needs_classes=True),
    "threedfed": AttackEntry(ThreeDFed, ThreeDFedSettings, is_backdoor=True, needs_classes=True),
    "apart": AttackEntry(Apart, ApartSettings, is_backdoor=True, needs_classes=True),
    "mimic": AttackEntry(Mimic, MimicSettings, is_backdoor=True, needs_classes=True),
    "imitate": AttackEntry(Imitate, ImitateSettings),
    "flood": AttackEntry(Flood, FloodSettings),
    "whitewash": AttackEntry(Whitewash, WhitewashSettings),
}
"""Every attack by name."""


def build_attack(name: str, settings: Mapping[str, Any] | None = None) -> Attack:
    """The attack called `name`, with these overrides of its settings; an unknown key is an error."""
    if name not in ATTACKS:
        raise UnknownSettingError(f"there is no attack {name!r}; {nearest(name, list(ATTACKS))}")
    entry = ATTACKS[name]
    return entry.make(entry.settings(**(settings or {})))


__all__ = [
    "ATTACKS",
    "DBA",
    "PGD",
    "Adaptive",
    "AdaptiveSettings",
    "Apart",
    "ApartSettings",
    "Attack",
    "AttackEntry",
    "Batch",
    "ChangesNames",
    "ChoosesPace",
    "DBASettings",
    "Flood",
    "FloodSettings",
    "Gaussian",
    "GaussianSettings",
    "Hold",
    "HoldSettings",
    "Imitate",
    "ImitateSettings",
    "LabelFlip",
    "LabelFlipSettings",
    "Mimic",
    "MimicSettings",
    "MinMax",
    "MinMaxSettings",
    "Neurotoxin",
    "NeurotoxinSettings",
    "PGDSettings",
    "Scaling",
    "ScalingSettings",
    "SignFlip",
    "SignFlipSettings",
    "ThreeDFed",
    "ThreeDFedSettings",
    "View",
    "Watches",
    "Whitewash",
    "WhitewashSettings",
    "build_attack",
]
