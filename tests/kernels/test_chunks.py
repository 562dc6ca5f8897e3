import numpy as np
import pytest

from secureafl import kernels
from secureafl.history import BASE, Pages, Precision
from secureafl.types import Vector

RNG = np.random.default_rng(0)
NUM_CLIENTS, NUM_ROWS, DIM = 20, 8, 333
PARAMS = RNG.normal(size=DIM).astype(np.float32)


def filled(precision: Precision) -> tuple[Pages, Vector]:
    """A storage, and what it holds as one array (n, r, d)."""
    storage = Pages(DIM, NUM_ROWS, precision)
    storage.rebase(PARAMS + np.float32(0.5))
    values = RNG.normal(size=(NUM_CLIENTS, NUM_ROWS, DIM)).astype(np.float32)
    for client in values:
        slot = storage.add()
        for row, vector in enumerate(client):
            storage.write(slot, row, vector)
    if precision == "float16":
        state = storage.state_dict()
        values = np.asarray(state["rows"], np.float32) * np.asarray(state["scales"], np.float32)[:, :, None]
        values[:, BASE] += np.asarray(state["origin"], np.float32)
    return storage, values


def stacked(values: Vector) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The rows in float64, the gap in the base model's place."""
    rows = values.astype(np.float64)
    rows[:, BASE] = PARAMS - rows[:, BASE]
    return rows


precisions = pytest.mark.parametrize("precision", ["float32", "float16"])


@precisions
def test_gap_products_are_taken_with_params_minus_base(precision: Precision) -> None:
    storage, values = filled(precision)
    rows = stacked(values)
    expected = np.einsum("nrd,nd->nr", rows, rows[:, BASE])
    np.testing.assert_allclose(kernels.gap_products(storage.chunks, PARAMS), expected, rtol=1e-5, atol=1e-4)


@precisions
def test_moments_are_all_inner_products_of_one_clients_rows(precision: Precision) -> None:
    storage, values = filled(precision)
    rows = stacked(values)[17]
    np.testing.assert_allclose(kernels.moments(storage.only(17), PARAMS), rows @ rows.T, rtol=1e-5, atol=1e-4)


@precisions
def test_row_products_leave_out_the_base_model(precision: Precision) -> None:
    storage, values = filled(precision)
    pair = RNG.normal(size=(2, DIM)).astype(np.float32)
    expected = pair.astype(np.float64) @ values[3].T.astype(np.float64)
    expected[:, BASE] = 0.0
    np.testing.assert_allclose(kernels.row_products(storage.only(3), *pair), expected, rtol=1e-5, atol=1e-4)


@precisions
def test_estimates_are_weighted_sums_of_rows_and_gap(precision: Precision) -> None:
    storage, values = filled(precision)
    weights = RNG.normal(size=(NUM_CLIENTS, NUM_ROWS))
    out = np.empty((NUM_CLIENTS, DIM), np.float32)
    kernels.estimates(storage.chunks, weights, PARAMS, out)
    np.testing.assert_allclose(out, np.einsum("nr,nrd->nd", weights, stacked(values)), rtol=1e-4, atol=1e-5)
