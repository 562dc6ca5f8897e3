from itertools import pairwise

import numpy as np
import pytest

from secureafl import ClientId, Vector
from secureafl.errors import StateError
from secureafl.history import BASE, DELTA, History
from secureafl.kernels import reference

A, B = ClientId(0), ClientId(5)


def make(dim: int = 4, memory: int = 3) -> History:
    return History(dim, memory, min_curvature=1e-8, strict=True)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_distances_are_measured_from_the_last_stored_update() -> None:
    history = make(2)
    history.remember(A, vector(1, 0), vector(0, 0))
    history.remember(A, vector(0, 0), vector(1, 1))
    assert history.distances(A, vector(3, 4), vector(1, 3)) == (5.0, 2.0)


def test_clients_are_apart() -> None:
    history = make(2)
    history.remember(A, vector(1, 0), vector(0, 0))
    history.remember(B, vector(7, 7), vector(1, 1))
    assert history.clients == [A, B]
    assert history.last_delta(A).tolist() == [1, 0]
    assert history.last_delta(B).tolist() == [7, 7]


def test_correction_equals_the_literal_hessian_product_also_after_places_are_reused() -> None:
    rng = np.random.default_rng(0)
    hessian = np.diag(rng.uniform(0.5, 3, size=6))
    history, updates = make(6, memory=3), []
    for _ in range(6):  # 5 pairs through 3 places
        w = rng.normal(size=6).astype(np.float32)
        updates.append((w, (hessian @ w).astype(np.float32)))
        history.remember(A, updates[-1][1], w)
    s = np.stack([b[0] - a[0] for a, b in pairwise(updates[2:])], axis=1)
    y = np.stack([b[1] - a[1] for a, b in pairwise(updates[2:])], axis=1)
    now = rng.normal(size=6).astype(np.float32)
    expected = reference.hessian_product(
        s.astype(np.float64), y.astype(np.float64), now.astype(np.float64) - updates[-1][0]
    )
    correction = history.correction(A, now)
    np.testing.assert_allclose(history.estimate(A, correction.weights[0], now), expected, rtol=1e-5, atol=1e-5)


def test_moments_give_the_length_of_any_weighted_row_sum() -> None:
    rng = np.random.default_rng(1)
    history = make(50)
    for _ in range(4):
        w = rng.normal(size=50).astype(np.float32)
        history.remember(A, 2 * w, w)
    now = rng.normal(size=50).astype(np.float32)
    moments = history.corrections(now).moments[0]
    weights = rng.normal(size=len(moments))
    length = np.linalg.norm(history.estimate(A, weights, now).astype(np.float64))
    assert np.sqrt(weights @ moments @ weights) == pytest.approx(length, rel=1e-5)


def test_without_pairs_there_is_no_correction() -> None:
    history = make(2)
    history.remember(A, vector(1, 2), vector(0, 0))
    assert not history.corrections(vector(5, 5)).weights.any()


def test_pairs_that_show_no_positive_curvature_are_counted_and_dropped() -> None:
    history = make(2)
    history.remember(A, vector(1, 1), vector(0, 0))
    history.remember(A, vector(0, 0), vector(1, 1))  # the gradient fell while w grew
    history.remember(A, vector(5, 5), vector(1, 1))  # the model did not change
    assert history.guards == {"pair without positive curvature": 1, "pair on an unchanged model": 1}
    assert not history.corrections(vector(9, 9)).weights.any()
    assert history.last_delta(A).tolist() == [5, 5]


def test_growing_keeps_what_was_there() -> None:
    history = make(3, memory=1)
    for k in range(40):
        history.remember(ClientId(k), vector(k, 0, 0), vector(0, k, 0))
        history.remember(ClientId(k), vector(k + 1, 0, 0), vector(1, k, 0))
    assert len(history) == 40
    estimates = np.empty((40, 3), np.float32)
    now = vector(3, 0, 0)
    weights = history.corrections(now).weights
    weights[:, DELTA] += 1
    history.estimates(weights, now, estimates)
    # s = (1,0,0), y = (1,0,0), sigma = 1: the estimate moves with the gap (2, -k, 0)
    np.testing.assert_allclose(estimates, [[k + 3, -k, 0] for k in range(40)], atol=1e-4)


def test_state_of_another_shape_is_refused() -> None:
    history = make(3, memory=1)
    history.remember(A, vector(1, 2, 3), vector(0, 0, 0))
    with pytest.raises(StateError, match=r"\(4, 3\).*needs \(8, 3\)"):
        make(3, memory=3).load_state_dict(history.state_dict())


def test_memory_of_zero_keeps_references_only() -> None:
    history = make(2, memory=0)
    history.remember(A, vector(1, 0), vector(0, 0))
    history.remember(A, vector(2, 0), vector(1, 0))
    weights = history.corrections(vector(9, 9)).weights
    assert weights.shape == (1, 2)
    assert weights[0, BASE] == 0
