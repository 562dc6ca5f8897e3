import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import model, update

from secureafl import Model, Vector
from secureafl.defenses import AFLGuard, AFLGuardSettings

HERE = model(0, [0, 0, 0])
TRUSTED = np.array([3, 4, 0], np.float32)


def guard(max_distance: float = 1.5, trusted: Vector = TRUSTED) -> AFLGuard:
    return AFLGuard(3, AFLGuardSettings(max_distance=max_distance), reference=lambda _: trusted)


@pytest.mark.parametrize(("max_distance", "passes"), [(0.9, False), (1.0, True), (3.0, True)])
def test_the_zero_update_passes_from_distance_one_on(max_distance: float, passes: bool) -> None:
    assert guard(max_distance).step(update(0, HERE, [0, 0, 0]), HERE).accepted is passes


def test_half_the_opposite_passes_at_one_and_a_half() -> None:
    assert guard(1.5).step(update(0, HERE, -0.5 * TRUSTED), HERE).accepted
    assert not guard(1.49).step(update(0, HERE, -0.5 * TRUSTED), HERE).accepted


@given(st.integers(0, 1000), st.sampled_from([0.25, 0.5, 2.0, 64.0]))
def test_verdict_is_scale_equivariant(seed: int, c: float) -> None:
    g = TRUSTED + np.random.default_rng(seed).normal(size=3).astype(np.float32) * 5
    plain = guard().step(update(0, HERE, g), HERE)
    scaled = guard(trusted=np.float32(c) * TRUSTED).step(update(0, HERE, c * g), HERE)
    assert plain.accepted == scaled.accepted


def test_boundary_is_inclusive_and_the_step_unscaled() -> None:
    verdict = guard(2.0).step(update(0, HERE, 3 * TRUSTED), HERE)
    assert verdict.evidence["distance"] == verdict.evidence["threshold"] == 10.0
    assert verdict.direction is not None
    assert verdict.direction.tolist() == [9, 12, 0]


def test_server_delay_lets_a_reference_serve_longer() -> None:
    asked: list[int] = []

    def reference(at: Model) -> Vector:
        asked.append(at.version)
        return TRUSTED

    judge = AFLGuard(3, AFLGuardSettings(server_delay=1), reference=reference)
    for version in range(4):
        judge.step(update(0, HERE, TRUSTED), model(version, [0, 0, 0]))
    assert asked == [0, 2]


def test_a_reference_that_is_not_finite_believes_no_one() -> None:
    assert not guard(trusted=np.full(3, np.nan, np.float32)).step(update(0, HERE, TRUSTED), HERE).accepted
