"""What holds for every defense and every variant of SecureAFL, whatever it decides."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import Federation, Quadratic

from secureafl.defenses import DEFENSES, PAPER, PAPER_VARIANTS
from secureafl.testing import defense_contract
from secureafl.testing.defense_contract import CHECKS, EXTREME, EXTREME_DIM, NUM_EXTREME_CLIENTS, Make, maker

CONFIGURATIONS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in DEFENSES}
CONFIGURATIONS["asyncdefender"] = ("asyncdefender", {"num_first": 10})
CONFIGURATIONS |= {f"secureafl-variant-{key}": ("secureafl", dict(changes)) for key, changes in PAPER_VARIANTS.items()}
CONFIGURATIONS["secureafl-median"] = ("secureafl", {"aggregate": "median"})
CONFIGURATIONS["secureafl-published"] = ("secureafl", dict(PAPER))
CONFIGURATIONS["secureafl-calibrated"] = (
    "secureafl",
    {"aggregate": "median", "correction": "calibrated", "refresh_interval": 60},
)
CONFIGURATIONS["secureafl-half-precision"] = (
    "secureafl",
    {"aggregate": "median", "history_dtype": "float16", "correction": "calibrated", "refresh_interval": 50},
)

every_configuration = pytest.mark.parametrize("configuration", CONFIGURATIONS)


@every_configuration
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(configuration: str, check: Callable[[Make], None]) -> None:
    check(maker(*CONFIGURATIONS[configuration]))


@every_configuration
def test_ours_say_how_stale_an_update_was(configuration: str) -> None:
    name, changes = CONFIGURATIONS[configuration]
    problem = Quadratic(num_clients=defense_contract.NUM_CLIENTS)
    for _, verdict in Federation(problem, problem.defense(name, **changes)).run(100):
        assert verdict.evidence["staleness"] >= 0


extreme = st.lists(st.sampled_from(EXTREME), min_size=EXTREME_DIM, max_size=EXTREME_DIM)


@every_configuration
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, NUM_EXTREME_CLIENTS - 1), extreme), max_size=25))
def test_no_finite_update_however_extreme_makes_the_model_infinite(
    configuration: str, arrivals: list[tuple[int, list[float]]]
) -> None:
    defense_contract.stays_finite(maker(*CONFIGURATIONS[configuration]), arrivals)
