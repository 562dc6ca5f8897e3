"""What every attack promises, whatever it does. A new one joins by its entry in `ATTACKS`."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from secureafl.errors import UnknownSettingError
from secureafl.lab.attacks import ATTACKS, build_attack
from secureafl.testing.attack_contract import CHECKS, Trial, trial
from secureafl.testing.attack_views import view

NAMES = list(ATTACKS)
RANDOM = {"gaussian", "threedfed", "whitewash"}
SETTINGS: Mapping[str, Mapping[str, object]] = {"threedfed": {"num_rows": 3}}


def test_names() -> None:
    assert [
        *("label_flip", "sign_flip", "gaussian", "min_max", "adaptive", "hold"),
        *("scaling", "dba", "pgd", "neurotoxin", "threedfed", "apart", "mimic"),
        *("imitate", "flood", "whitewash"),
    ] == NAMES
    assert [n for n in NAMES if ATTACKS[n].is_backdoor] == [
        *("scaling", "dba", "pgd", "neurotoxin", "threedfed", "apart", "mimic")
    ]


def test_unknown_names_and_settings_say_what_to_write() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean 'gaussian'"):
        build_attack("gausian")
    with pytest.raises(UnknownSettingError, match="did you mean 'scale'"):
        build_attack("scaling", {"scal": 3})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(name: str, check: Callable[[Trial], None]) -> None:
    check(trial(name, SETTINGS.get(name, {})))


@pytest.mark.parametrize("name", NAMES)
def test_only_those_that_say_so_are_random(name: str) -> None:
    attack = trial(name, SETTINGS.get(name, {}))
    first, other = attack.update(view()), attack.update(view(rng=np.random.default_rng(77)))
    assert (first != other).any() == (name in RANDOM)
