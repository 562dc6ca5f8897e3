import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import model, update

from secureafl import Model, Vector
from secureafl.defenses import ZenoPP, ZenoPPSettings
from secureafl.errors import SettingsError

HERE = model(0, [0, 0, 0])
TRUSTED = np.array([3, 4, 0], np.float32)


def zeno(**settings: float) -> ZenoPP:
    return ZenoPP(3, ZenoPPSettings(**settings), server_lr=0.1, reference=lambda _: TRUSTED)  # type: ignore[arg-type]


@given(st.floats(1e-3, 1e6))
def test_any_positive_multiple_of_the_reference_is_accepted_with_the_reference_as_step(c: float) -> None:
    verdict = zeno().step(update(0, HERE, c * TRUSTED), HERE)
    assert verdict.direction is not None
    np.testing.assert_allclose(verdict.direction, TRUSTED, rtol=1e-5)


def test_the_opposite_of_the_reference_is_rejected() -> None:
    assert not zeno().step(update(0, HERE, -TRUSTED), HERE).accepted


@given(st.floats(1e-3, 1e6), st.integers(0, 1000))
def test_verdict_and_step_do_not_depend_on_the_update_s_length(c: float, seed: int) -> None:
    g = np.random.default_rng(seed).normal(size=3).astype(np.float32)
    one, scaled = (zeno().step(update(0, HERE, factor * g), HERE) for factor in (1.0, c))
    assert one.accepted == scaled.accepted
    if one.direction is not None and scaled.direction is not None:
        np.testing.assert_allclose(one.direction, scaled.direction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("g", "trusted"), [([0, 0, 0], TRUSTED), ([1, 0, 0], np.zeros(3, np.float32))])
def test_nothing_to_compare_is_rejected(g: list[float], trusted: Vector) -> None:
    judge = ZenoPP(3, server_lr=0.1, reference=lambda _: trusted)
    assert not judge.step(update(0, HERE, g), HERE).accepted


def test_penalty_and_slack_move_the_least_cosine() -> None:
    g = [4, 3, 0]  # cosine 24/25
    assert zeno(rho=0.09).step(update(0, HERE, g), HERE).accepted  # needs cosine >= 0.9
    assert not zeno(rho=0.097).step(update(0, HERE, g), HERE).accepted
    assert zeno(rho=0.097, epsilon=1.0).step(update(0, HERE, g), HERE).accepted  # 1 / 25 less


def test_reference_is_computed_anew_after_its_time() -> None:
    asked: list[int] = []

    def reference(at: Model) -> Vector:
        asked.append(at.version)
        return TRUSTED

    judge = ZenoPP(3, ZenoPPSettings(refresh_every=3), server_lr=0.1, reference=reference)
    for version in range(7):
        judge.step(update(0, HERE, TRUSTED), model(version, [0, 0, 0]))
    assert asked == [0, 3, 6]


def test_a_reference_of_the_wrong_shape_is_the_operator_s_fault() -> None:
    judge = ZenoPP(3, server_lr=0.1, reference=lambda _: np.zeros(2, np.float32))
    with pytest.raises(SettingsError, match=r"returned shape \(2,\); the model needs \(3,\)"):
        judge.step(update(0, HERE, TRUSTED), HERE)
