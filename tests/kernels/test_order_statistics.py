import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from secureafl import kernels
from secureafl.kernels import reference
from secureafl.types import Vector

finite = st.floats(-1e6, 1e6, width=32)


def matrices(min_rows: int = 1) -> st.SearchStrategy[Vector]:
    shapes = st.tuples(st.integers(min_rows, 20), st.integers(1, 9))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=finite))


def test_median_of_odd_count_is_the_middle_value() -> None:
    rows = np.array([[3, -1, 0], [1, 5, 0], [2, 7, 9]], np.float32)
    assert kernels.coordinate_median(rows).tolist() == [2.0, 5.0, 0.0]


def test_median_of_even_count_is_the_mean_of_the_two_middle_values() -> None:
    rows = np.array([[4, 0], [1, 0], [2, 10], [100, 2]], np.float32)
    assert kernels.coordinate_median(rows).tolist() == [3.0, 1.0]


def test_nan_rows_never_win() -> None:
    rows = np.array([[1, 1], [2, 2], [3, 3], [np.nan, np.nan], [np.nan, -np.nan]], np.float32)
    assert kernels.coordinate_median(rows).tolist() == [3.0, 3.0]


def test_median_does_not_overflow_for_the_largest_floats() -> None:
    big = np.finfo(np.float32).max
    assert kernels.coordinate_median(np.full((2, 3), big, np.float32)).tolist() == [float(big)] * 3


@pytest.mark.parametrize("n", [1, 2, 3, 7, 49, 50, 127, 128, 129, 301])
@pytest.mark.parametrize("d", [1, 127, 1000])
def test_median_equals_the_literal_one(n: int, d: int) -> None:
    rows = np.random.default_rng(n * d).normal(size=(n, d)).astype(np.float32)
    np.testing.assert_allclose(kernels.coordinate_median(rows), reference.coordinate_median(rows), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("n", "trim"), [(3, 0), (3, 1), (10, 2), (50, 10), (200, 40)])
def test_trimmed_mean_equals_the_literal_one(n: int, trim: int) -> None:
    rows = np.random.default_rng(n).normal(size=(n, 333)).astype(np.float32)
    np.testing.assert_allclose(
        kernels.trimmed_mean(rows, trim), reference.trimmed_mean(rows, trim), rtol=1e-5, atol=1e-6
    )


@given(matrices(), st.randoms(use_true_random=False))
def test_median_ignores_the_order_of_rows(rows: Vector, shuffler: object) -> None:
    order = list(range(len(rows)))
    shuffler.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(kernels.coordinate_median(rows), kernels.coordinate_median(rows[order]))


@given(matrices())
def test_median_and_trimmed_mean_lie_within_the_rows(rows: Vector) -> None:
    low, high = rows.min(axis=0), rows.max(axis=0)
    slack = 1e-6 * np.abs(rows).max() + 1e-30
    for out in (kernels.coordinate_median(rows), kernels.trimmed_mean(rows, (len(rows) - 1) // 2)):
        assert (out >= low - slack).all()
        assert (out <= high + slack).all()


@given(matrices(min_rows=3), finite)
def test_median_follows_a_shift_of_a_minority_at_most_to_the_majority(rows: Vector, outlier: float) -> None:
    n = len(rows)
    poisoned = rows.copy()
    poisoned[: (n - 1) // 2] = outlier
    honest = rows[(n - 1) // 2 :]
    out = kernels.coordinate_median(poisoned)
    slack = 1e-6 * max(1.0, float(np.abs(rows).max()))
    assert (out >= honest.min(axis=0) - slack).all()
    assert (out <= honest.max(axis=0) + slack).all()


def test_impossible_trim_is_an_error_not_a_clamp() -> None:
    with pytest.raises(ValueError, match="cannot trim 2 from each end of 4"):
        kernels.trimmed_mean(np.zeros((4, 2), np.float32), 2)


def test_nothing_to_combine_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one vector"):
        kernels.coordinate_median(np.zeros((0, 3), np.float32))


@pytest.mark.parametrize("n", [50, 200, 201])
def test_many_equal_values_mixed_zeros_infinities_and_outliers(n: int) -> None:
    rng = np.random.default_rng(n)
    special = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, 1e18], np.float32)
    rows = rng.choice(special, size=(n, 500)).astype(np.float32)
    rows[:, :50] = rng.choice(special[:2], size=(n, 50))
    rows[:, 50:100] = np.float32(1e-30) * rng.normal(size=(n, 50)).astype(np.float32)
    rows[0, 50:100] = 1e18
    with np.errstate(invalid="ignore"):
        expected = reference.coordinate_median(np.where(np.isnan(rows), np.float32(np.inf), rows))
    np.testing.assert_allclose(kernels.coordinate_median(rows), expected.astype(np.float32), rtol=1e-6)
