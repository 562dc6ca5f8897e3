import numpy as np

from secureafl import kernels

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 8, 2500)).astype(np.float32)
PARAMS = RNG.normal(size=2500).astype(np.float32)


def test_squared_distance() -> None:
    assert kernels.squared_distance(np.array([1, 2, 3], np.float32), np.array([1, 0, 0], np.float32)) == 13.0


def test_gram_holds_all_products_but_those_of_the_base_model() -> None:
    rows = ROWS[0].astype(np.float64)
    expected = rows @ rows.T
    expected[1, :] = expected[:, 1] = 0.0
    np.testing.assert_allclose(kernels.gram(ROWS[0]), expected, rtol=1e-10)


def test_gap_products_are_taken_with_params_minus_base() -> None:
    rows = ROWS.astype(np.float64)
    gap = (PARAMS - ROWS[:, 1]).astype(np.float64)
    expected = np.einsum("nrd,nd->nr", rows, gap)
    expected[:, 1] = (gap * gap).sum(axis=1)
    np.testing.assert_allclose(kernels.gap_products(ROWS, PARAMS), expected, rtol=1e-6, atol=1e-5)


def test_combine_is_a_weighted_sum_of_rows_and_gap() -> None:
    weights = RNG.normal(size=(5, 8))
    out = np.empty((5, 2500), np.float32)
    kernels.combine(ROWS, weights, PARAMS, out)
    stacked = ROWS.astype(np.float64)
    stacked[:, 1] = PARAMS - stacked[:, 1]
    np.testing.assert_allclose(out, np.einsum("nr,nrd->nd", weights, stacked), rtol=1e-4, atol=1e-5)
