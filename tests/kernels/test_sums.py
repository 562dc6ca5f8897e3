import numpy as np
import pytest

from secureafl import kernels
from secureafl.types import Vector

UNIT = 2.0**-36
SIZES = [1, 7, 63, 64, 65, 600, 1537]


def vectors(size: int, count: int, seed: int = 0) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("size", SIZES)
def test_an_update_is_measured_in_one_pass(size: int) -> None:
    delta, base, row, consensus = vectors(size, 4)
    signs = np.random.default_rng(1).choice(np.array([-1, 1], np.int8), size)
    found = kernels.survey(delta, base, row, consensus, signs, 128)
    exact = delta.astype(np.float64)
    assert found.square == pytest.approx(exact @ exact)
    assert found.consensus == pytest.approx(exact @ consensus, abs=1e-6)
    assert found.row == pytest.approx(exact @ row, abs=1e-6)
    assert found.change == pytest.approx(((delta - row).astype(np.float64) ** 2).sum())
    places = np.arange(size) % 128
    np.testing.assert_allclose(found.sketch, np.bincount(places, exact * signs, 128), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.base_sketch, np.bincount(places, base.astype(np.float64) * signs, 128))


def test_without_a_row_and_a_consensus_these_numbers_are_zero() -> None:
    [delta, base] = vectors(100, 2)
    found = kernels.survey(delta, base)
    assert (found.consensus, found.row, found.change, len(found.sketch)) == (0.0, 0.0, 0.0, 0)


@pytest.mark.parametrize("size", SIZES)
def test_the_sum_is_the_plain_weighted_mean(size: int) -> None:
    rows, weights = vectors(size, 5), [kernels.FULL // k for k in (1, 2, 3, 4, 5)]
    votes = np.zeros(size, np.int64)
    for row, weight in zip(rows[:-1], weights, strict=False):
        kernels.reweigh(votes, row, 0, weight, UNIT)
    last, total = np.zeros(size, np.float32), sum(weights)
    mean = np.empty_like(last)
    found = kernels.replace(votes, last, rows[-1], 1.0, 0.0, 0, weights[-1], total, UNIT, 0.0, mean)
    plain = sum(w * row.astype(np.float64) for w, row in zip(weights, rows, strict=True)) / total
    np.testing.assert_allclose(mean, plain, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found.direction, mean)
    np.testing.assert_array_equal(last, rows[-1])
    assert found.row_square == pytest.approx(float(rows[-1].astype(np.float64) @ rows[-1]))


def test_the_sum_never_drifts() -> None:
    """Ten thousand replacements in any order leave exactly what the rows that are there add up to."""
    size, rng = 50, np.random.default_rng(3)
    rows = [np.zeros(size, np.float32) for _ in range(6)]
    weights, votes = [0] * 6, np.zeros(size, np.int64)
    for _ in range(10_000):
        k, weight = int(rng.integers(6)), int(rng.integers(kernels.FULL + 1))
        delta = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 2)).astype(np.float32)
        total = sum(weights) - weights[k] + weight
        kernels.replace(votes, rows[k], delta, 0.7, 0.3, weights[k], weight, total, UNIT, 0.0, np.empty_like(delta))
        weights[k] = weight
    anew = np.zeros(size, np.int64)
    for row, weight in zip(rows, weights, strict=True):
        kernels.reweigh(anew, row, 0, weight, UNIT)
    np.testing.assert_array_equal(votes, anew)
    for row, weight in zip(rows, weights, strict=True):
        kernels.reweigh(votes, row, weight, 0, UNIT)
    assert not votes.any()


def test_the_lead_is_a_share_of_the_change() -> None:
    [row, delta] = vectors(200, 2)
    votes, before = np.zeros(200, np.int64), row.copy()
    kernels.reweigh(votes, row, 0, kernels.FULL, UNIT)
    mean = np.empty_like(row)
    found = kernels.replace(votes, row, delta, 1.0, 0.0, kernels.FULL, kernels.FULL, kernels.FULL, UNIT, 0.25, mean)
    np.testing.assert_allclose(found.direction, mean + 0.25 * (delta - before), rtol=1e-5, atol=1e-6)


def test_products_with_every_row() -> None:
    rows = np.stack(vectors(130, 9))
    vector = vectors(130, 1, seed=5)[0]
    np.testing.assert_allclose(kernels.products_with(rows, vector), rows.astype(np.float64) @ vector, atol=1e-5)
