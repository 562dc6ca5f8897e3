"""Every attack, one file each, under one interface: the published methods, and those written for this laboratory.

`ATTACKS` names them; `build_attack` makes one from a name and plain settings. An attack of the user's own is called
`module:Name`, or as the package that offers it says.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
from secureafl.plugins import find_own, read_constructor, require_class
from secureafl.settings import Settings


class AttackEntry(NamedTuple):
    """One attack: its class, its settings, and what an experiment must know of it."""

    make: Callable[..., Attack]
    settings: type[Settings] = Settings
    """`Settings` itself for a constructor that takes none."""
    is_backdoor: bool = False
    """Whether success is measured by the trigger (ASR) beside the error on clean images."""
    needs_classes: bool = False
    """Whether it needs a classification; a regression has no label to turn."""
    needs_shadow: bool = False
    """Whether it reads `View.shadow`, which costs a SecureAFL step per arrival when another defense runs."""

    def build(self, settings: Mapping[str, Any]) -> Attack:
        """The attack, with these overrides of its settings."""
        own = self.settings(**settings)
        return self.make() if self.settings is Settings else self.make(own)


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
"""Every attack of this package by name."""


def find_attack(name: str) -> AttackEntry:
    """The attack called `name`: built in, offered by an installed package, or `module:Name`."""
    return ATTACKS[name] if name in ATTACKS else attack_entry(name, find_own("attack", name, ["none", *ATTACKS]))


def attack_entry(name: str, found: object) -> AttackEntry:
    """An entry for a class of the user's own, as its constructor says; an entry stays as it is.

    Of an attack that is made already, every run has a copy.
    """
    if isinstance(found, AttackEntry):
        return found
    if isinstance(found, Attack) and not inspect.isclass(found):
        return AttackEntry(lambda: copy.deepcopy(found))
    made = require_class(name, found, "attack", ("update", "observe", "state_dict", "load_state_dict"))
    return AttackEntry(made, read_constructor(name, made)[0])


def build_attack(name: str, settings: Mapping[str, Any] | None = None) -> Attack:
    """The attack called `name`, with these overrides of its settings; an unknown key is an error."""
    return find_attack(name).build(settings or {})


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
    "attack_entry",
    "build_attack",
    "find_attack",
]
