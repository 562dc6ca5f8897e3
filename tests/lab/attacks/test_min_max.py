import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secureafl import ClientId, Model
from secureafl.errors import SettingsError
from secureafl.lab.attacks import MinMax, MinMaxSettings, min_max
from secureafl.lab.attacks.attack import Float
from secureafl.lab.attacks.min_max import Direction
from secureafl.testing.attack_views import view

DIRECTIONS: list[Direction] = ["unit", "sign", "std"]


def crowd(seed: int, num: int, dim: int, offset: float) -> Float:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num, dim)) * rng.uniform(0.1, 3.0, size=dim) + offset


def perturbation(updates: Float, direction: Direction) -> Float:
    return min_max.perturbation(updates, updates.mean(axis=0), direction)


def diameter(updates: Float) -> float:
    return min_max.diameter(updates.mean(axis=0) - updates)


def largest_gamma(updates: Float, p: Float) -> float:
    return min_max.largest_gamma(updates.mean(axis=0) - updates, p)


def largest_distance(point: Float, updates: Float) -> float:
    return float(np.linalg.norm(point - updates, axis=1).max())


crowds = st.builds(
    crowd, st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 12), st.floats(-5, 5, allow_nan=False)
)


def test_closed_form_by_hand() -> None:
    updates = np.array([[1.0, 0.0], [3.0, 0.0]])  # mu = (2, 0), D = 2, p = (1, 0)
    p = perturbation(updates, "unit")
    assert p.tolist() == [1, 0]
    assert diameter(updates) == 2
    assert largest_gamma(updates, p) == 1  # m = (1, 0) is 2 from (3, 0), and further left would be more


def test_far_gamma_is_not_cut_off_as_in_a_halving_search() -> None:
    updates = np.array([[1.0, 500.0], [1.0, -500.0]])  # D = 1000; m = (1 - g, 0): g^2 + 500^2 = 1000^2
    assert largest_gamma(updates, np.array([1.0, 0.0])) == pytest.approx(500 * np.sqrt(3))


@given(crowds, st.sampled_from(DIRECTIONS))
def test_largest_distance_is_the_diameter(updates: Float, direction: Direction) -> None:
    p = perturbation(updates, direction)
    assume(p.any())
    d = diameter(updates)
    m = updates.mean(axis=0) - largest_gamma(updates, p) * p
    assert d * (1 - 1e-6) <= largest_distance(m, updates) <= d * (1 + 1e-6)


@given(crowds, st.sampled_from(DIRECTIONS))
def test_agrees_with_bisection(updates: Float, direction: Direction) -> None:
    p, mean, d = perturbation(updates, direction), updates.mean(axis=0), diameter(updates)
    assume(p.any())
    low, high = 0.0, 3 * d / float(np.linalg.norm(p))
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if largest_distance(mean - middle * p, updates) <= d else (low, middle)
    assert largest_gamma(updates, p) == pytest.approx(low, rel=1e-6, abs=1e-9)


@given(crowds, st.integers(0, 1000))
def test_unit_update_turns_with_the_crowd(updates: Float, seed: int) -> None:
    dim = updates.shape[1]
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    p, turned = perturbation(updates, "unit"), perturbation(updates @ rotation, "unit")
    assume(np.linalg.norm(updates.mean(axis=0)) > 1e-6)
    np.testing.assert_allclose(turned, p @ rotation, atol=1e-7)
    assert largest_gamma(updates @ rotation, turned) == pytest.approx(largest_gamma(updates, p), rel=1e-6)


@given(crowds, st.integers(0, 1000))
def test_gamma_does_not_depend_on_where_the_crowd_is(updates: Float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, shift = rng.normal(size=(2, updates.shape[1])) * np.array([[1.0], [10.0]])
    assert largest_gamma(updates + shift, p) == pytest.approx(largest_gamma(updates, p), rel=1e-6, abs=1e-9)


def test_update_hides_among_the_honest_and_ignores_the_malicious() -> None:
    seen = view()
    honest = np.stack([seen.updates[ClientId(k)] for k in range(6)]).astype(np.float64)
    sent = MinMax().update(seen)
    assert largest_distance(sent.astype(np.float64), honest) == pytest.approx(diameter(honest), rel=1e-5)
    crowded = view(updates={**seen.updates, ClientId(9): np.full(131, 1e6, np.float32)})
    np.testing.assert_array_equal(MinMax().update(crowded), sent)


def test_fresh_gradients_take_the_place_of_the_latest_updates() -> None:
    seen = view()
    fresh = MinMax(MinMaxSettings(benign="fresh"))
    same = fresh.update(view(updates={}, benign_gradients=lambda: seen.updates))
    np.testing.assert_array_equal(same, MinMax().update(seen))
    with pytest.raises(SettingsError, match="benign_gradients"):
        fresh.update(seen)


def test_too_few_updates_or_no_direction_sends_the_honest_gradient() -> None:
    base = Model(0, np.zeros(131, np.float32))
    ones = np.ones(131, np.float32)
    lonely = view(updates={ClientId(0): ones})
    np.testing.assert_array_equal(MinMax().update(lonely), lonely.gradient)
    balanced = view(base=base, updates={ClientId(0): ones, ClientId(1): -ones})
    np.testing.assert_array_equal(MinMax().update(balanced), balanced.gradient)
