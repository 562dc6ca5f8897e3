import numpy as np
from tests.support import Federation, Quadratic, model, update

from secureafl.defenses import AsyncDefender, AsyncDefenderSettings
from secureafl.types import Reason

HERE = model(0, [0, 0])


def warmed_up() -> AsyncDefender:
    defender = AsyncDefender(2, AsyncDefenderSettings(num_first=3))
    for client in range(3):
        defender.step(update(client, HERE, [1, 0.1 * client]), HERE)
    return defender


def test_an_update_against_the_reference_makes_no_step() -> None:
    for delta in ([-1, 0], [-0.01, -1]):
        verdict = warmed_up().step(update(0, HERE, delta), HERE)
        assert verdict.direction is None
        assert verdict.reason == Reason.AGAINST_REFERENCE


def test_step_is_never_longer_than_the_typical_update() -> None:
    defender = warmed_up()
    for length in (0.5, 1.0, 50.0, 1e6):
        verdict = defender.step(update(1, HERE, [length, 0]), HERE)
        assert verdict.direction is not None
        assert np.linalg.norm(verdict.direction) <= verdict.evidence["typical_norm"] * (1 + 1e-5)


def test_converges_on_a_clean_quadratic() -> None:
    problem = Quadratic(noise=0.0, spread=0.0)
    federation = Federation(problem, AsyncDefender(problem.dim, AsyncDefenderSettings(num_first=7)))
    before = federation.distance
    federation.run(1_500)
    assert federation.distance < 0.05 * before


def test_trust_falls_with_each_contrary_update() -> None:
    defender = warmed_up()
    first = defender.step(update(0, HERE, [-1, 0]), HERE).evidence["trust"]
    second = defender.step(update(0, HERE, [-1, 0]), HERE).evidence["trust"]
    assert second < first < 1.0
