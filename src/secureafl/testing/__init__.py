"""What every defense and every attack promises, as functions to call in tests of one's own.

They need no test framework: a broken promise is an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from secureafl.defenses import Defense, DefenseEntry
from secureafl.testing.defense_contract import CHECKS, maker

if TYPE_CHECKING:
    from secureafl.lab.attacks import AttackEntry


def check_defense(defense: str | type[Any] | DefenseEntry | Callable[[int], Defense], **settings: object) -> None:
    """Run a defense through a small federation in many ways; an `AssertionError` says which promise it breaks.

    defense   a class, its name (`module:Name`), an entry, or a function that makes it for so many parameters
    settings  those of the defense that differ from its defaults
    """
    make = maker(defense, settings)
    for check in CHECKS:
        check(make)


def check_attack(attack: str | type[Any] | AttackEntry, **settings: object) -> None:
    """Let an attack send updates in many situations; an `AssertionError` says which promise it breaks.

    attack    a class, its name (`module:Name`), or an entry
    settings  those of the attack that differ from its defaults

    It needs the extra `lab`.
    """
    from secureafl.testing import attack_contract

    trial = attack_contract.trial(attack, settings)
    for check in attack_contract.CHECKS:
        check(trial)


__all__ = ["check_attack", "check_defense"]
