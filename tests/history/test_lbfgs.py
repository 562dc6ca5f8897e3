"""The compact L-BFGS operator against its definition. s, y are (d, m) with columns from oldest to newest."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secureafl.history import lbfgs
from secureafl.kernels import reference

Float = npt.NDArray[np.float64]
DIM = 9


def apply(s: Float, y: Float, v: Float, *, strict: bool = True) -> Float:
    """B v through Gram matrices only, as the server does it."""
    rows = np.vstack([y.T, s.T])
    operator = lbfgs.operator(rows @ rows.T, strict=strict)
    assert operator is not None
    return np.asarray(operator.sigma * v + rows.T @ (operator.matrix @ (rows @ v)))


def pairs(seed: int, m: int, *, curvature: float = 1.0) -> tuple[Float, Float]:
    """Steps on a quadratic, so that every s.y > 0."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(DIM, DIM))
    hessian = root @ root.T / DIM + 0.3 * np.eye(DIM)
    s = rng.normal(size=(DIM, m))
    return s, curvature * hessian @ s


seeds, memories = st.integers(0, 10_000), st.integers(1, 4)


@given(seeds, memories)
def test_equals_explicit_bfgs_updates_from_sigma_identity(seed: int, m: int) -> None:
    s, y = pairs(seed, m)
    v = np.random.default_rng(seed + 1).normal(size=DIM)
    np.testing.assert_allclose(apply(s, y, v), reference.bfgs_matrix(s, y) @ v, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(apply(s, y, v), reference.hessian_product(s, y, v), rtol=1e-6, atol=1e-8)


@given(seeds, memories)
def test_secant_equation_holds_for_the_newest_pair(seed: int, m: int) -> None:
    s, y = pairs(seed, m)
    error = np.linalg.norm(apply(s, y, s[:, -1]) - y[:, -1]) / np.linalg.norm(y[:, -1])
    assert error <= 1e-10


@given(seeds)
def test_secant_equation_holds_whatever_the_signs_of_curvature(seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, y = rng.normal(size=(DIM, 3)), rng.normal(size=(DIM, 3))
    rows = np.vstack([y.T, s.T])
    assume(lbfgs.operator(rows @ rows.T) is not None)
    np.testing.assert_allclose(apply(s, y, s[:, -1]), y[:, -1], rtol=1e-6, atol=1e-7)


@given(seeds, memories)
def test_is_symmetric(seed: int, m: int) -> None:
    s, y = pairs(seed, m)
    u, v = np.random.default_rng(seed + 2).normal(size=(2, DIM))
    assert u @ apply(s, y, v) == pytest.approx(v @ apply(s, y, u), rel=1e-7, abs=1e-8)


@given(seeds, memories, st.floats(-3, 3), st.floats(-3, 3))
def test_is_linear_in_v(seed: int, m: int, a: float, b: float) -> None:
    s, y = pairs(seed, m)
    u, v = np.random.default_rng(seed + 3).normal(size=(2, DIM))
    np.testing.assert_allclose(
        apply(s, y, a * u + b * v), a * apply(s, y, u) + b * apply(s, y, v), rtol=1e-6, atol=1e-7
    )


@given(seeds, memories, st.floats(1e-3, 1e3))
def test_is_invariant_when_a_pair_is_scaled(seed: int, m: int, c: float) -> None:
    s, y = pairs(seed, m)
    v = np.random.default_rng(seed + 4).normal(size=DIM)
    scale = np.ones(m)
    scale[seed % m] = c
    np.testing.assert_allclose(apply(s * scale, y * scale, v), apply(s, y, v), rtol=1e-6, atol=1e-8)


@given(seeds, memories, st.floats(1e-2, 1e2))
def test_scales_with_the_curvature(seed: int, m: int, c: float) -> None:
    s, y = pairs(seed, m)
    v = np.random.default_rng(seed + 5).normal(size=DIM)
    np.testing.assert_allclose(apply(s, c * y, v), c * apply(s, y, v), rtol=1e-6, atol=1e-8)


@given(seeds, memories, st.floats(0.1, 10))
def test_is_exact_when_the_hessian_is_a_multiple_of_the_identity(seed: int, m: int, sigma: float) -> None:
    rng = np.random.default_rng(seed)
    s, v = rng.normal(size=(DIM, m)), rng.normal(size=DIM)
    np.testing.assert_allclose(apply(s, sigma * s, v), sigma * v, rtol=1e-7)


@given(seeds, memories)
def test_inclusive_triangle_annihilates_the_newest_direction(seed: int, m: int) -> None:
    s, y = pairs(seed, m)
    assert np.linalg.norm(apply(s, y, s[:, -1], strict=False)) <= 1e-7 * np.linalg.norm(y[:, -1])


def test_repeated_columns_still_give_a_positive_definite_operator() -> None:
    s, y = pairs(1, 1)
    doubled = apply(np.hstack([s, s]), np.hstack([y, y]), s[:, 0])
    np.testing.assert_allclose(doubled, y[:, 0], rtol=1e-8)


def test_no_pairs_mean_no_correction() -> None:
    operator = lbfgs.operator(np.zeros((0, 0)))
    assert operator is not None
    assert operator.sigma == 0.0
    assert operator.matrix.shape == (0, 0)


def test_a_singular_middle_matrix_is_reported_not_solved() -> None:
    s, y = np.eye(3)[:, :1], np.eye(3)[:, 1:2]  # s.y = 0
    rows = np.vstack([y.T, s.T])
    assert lbfgs.operator(rows @ rows.T) is None


@pytest.mark.parametrize(
    ("s_dot_y", "s_norm", "y_norm", "usable"),
    [
        (1.0, 1.0, 1.0, True),
        (0.0, 1.0, 1.0, False),
        (-1.0, 1.0, 1.0, False),
        (1e-9, 1.0, 1.0, False),
        (0.0, 0.0, 1.0, False),
    ],
)
def test_only_pairs_with_positive_curvature_are_usable(
    s_dot_y: float, s_norm: float, y_norm: float, usable: bool
) -> None:
    assert lbfgs.usable_pair(s_dot_y, s_norm, y_norm, min_curvature=1e-8) is usable
