from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
import pytest

from secureafl import kernels
from secureafl.history import BASE, DELTA, Pages, Precision
from secureafl.kernels import fused, reference, tile_plain, tile_simd
from secureafl.types import Vector

NUM_ROWS = 8


def make(n: int, d: int, precision: Precision = "float32", threads: int | None = None) -> tuple[Pages, Vector]:
    """A storage, and what it holds as one array (n, r, d)."""
    rng = np.random.default_rng(n * d)
    storage = Pages(d, NUM_ROWS, precision, threads=threads)
    values = rng.normal(size=(n, NUM_ROWS, d)).astype(np.float32)
    for client in values:
        slot = storage.add()
        for row, vector in enumerate(client):
            storage.write(slot, row, vector)
    if precision == "float16":
        state = storage.state_dict()
        values = np.asarray(state["rows"], np.float32) * np.asarray(state["scales"], np.float32)[:, :, None]
    return storage, values


def run(storage: Pages, sender: int, heard: bool, rule: kernels.Rule) -> kernels.Step:
    rng = np.random.default_rng(5)
    n, d = len(storage), storage.dim
    weights, params = rng.normal(size=(n, NUM_ROWS)), rng.normal(size=d).astype(np.float32)
    received = rng.normal(size=d).astype(np.float32)
    return kernels.fused_step(storage.chunks, weights, params, sender, received if heard else None, rule, 0.1)


def literal(values: Vector, sender: int, heard: bool, aggregate: Callable[..., Any]) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(5)
    n, _, d = values.shape
    weights: Any = rng.normal(size=(n, NUM_ROWS))
    params: Any = np.float32(rng.normal(size=d))
    received: Any = np.float32(rng.normal(size=d))
    rows = values.astype(np.float64)
    rows[:, BASE] = params - rows[:, BASE]
    votes = [vote for k, vote in enumerate(np.einsum("nr,nrd->nd", weights, rows)) if k != sender]
    return aggregate(np.array([*votes, *([received] if heard else [])])), params, rows


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize(("n", "d"), [(1, 5), (2, 64), (7, 1000), (50, 129), (129, 200), (130, 70)])
def test_step_equals_the_literal_one(n: int, d: int, heard: bool, precision: Precision) -> None:
    storage, values = make(n, d, precision)
    sender = n // 2 if n > 1 else n  # a known client, or a newcomer
    heard = heard or n == 1
    step = run(storage, sender, heard, kernels.Rule.median(n - (sender < n) + heard))
    direction, params, rows = literal(values, sender, heard, reference.coordinate_median)
    np.testing.assert_allclose(step.direction, direction, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(step.ahead, params - np.float32(0.1) * step.direction)
    moved = (step.ahead - params).astype(np.float64)
    np.testing.assert_allclose(step.products, rows @ moved, rtol=1e-5, atol=1e-5)
    assert step.moved == pytest.approx(moved @ moved)


def test_trimmed_mean_and_mean() -> None:
    storage, values = make(20, 300)
    trimmed = run(storage, 3, True, kernels.Rule.trimmed_mean(20, 4))
    expected, _, _ = literal(values, 3, True, lambda votes: reference.trimmed_mean(votes, 4))
    np.testing.assert_allclose(trimmed.direction, expected, rtol=1e-5, atol=1e-5)
    mean = run(storage, 3, False, kernels.Rule.mean(19))
    np.testing.assert_allclose(mean.direction, literal(values, 3, False, reference.mean)[0], rtol=1e-5, atol=1e-5)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    steps = [run(make(40, 30_000, threads=threads)[0], 3, True, kernels.Rule.median(40)) for threads in (1, 2)]
    for one, other in zip(*steps, strict=True):
        np.testing.assert_array_equal(one, other)


def pairs(storage: Pages, num_votes: int) -> kernels.Step:
    """A step over pairs of the last updates alone, one vote excluded if there is one more client than votes."""
    n, rng = len(storage), np.random.default_rng(7)
    weights = np.zeros((n, NUM_ROWS))
    weights[:, DELTA] = 1.0
    rule, excluded = kernels.Rule.median(-(-num_votes // 2)), np.arange(n) >= num_votes
    params, order = np.zeros(storage.dim, np.float32), rng.permutation(num_votes)
    return kernels.fused_step(
        storage.chunks, weights, params, n, None, rule, 0.1, excluded=excluded, follow=False, order=order, bucket=2
    )


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("num_votes", [1, 2, 12, 13, 131])
def test_pairs_of_updates_are_averaged_exactly_up_to_one_rounding(num_votes: int, precision: Precision) -> None:
    storage, values = make(num_votes + 1, 200, precision)
    votes = np.empty((num_votes, 200))
    votes[np.random.default_rng(7).permutation(num_votes)] = values[:num_votes, DELTA]
    means = np.array([votes[first : first + 2].mean(axis=0) for first in range(0, num_votes, 2)], np.float32)
    expected = np.float32(reference.coordinate_median(means))
    np.testing.assert_array_equal(pairs(storage, num_votes).direction, expected)


@pytest.mark.skipif(vars(fused)["combine"] is not tile_simd.combine, reason="this machine has nothing but plain loops")
@pytest.mark.parametrize("precision", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("float32", "float16")])
def test_plain_loops_do_the_same_as_explicit_vectors(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = make(12, 200, precision)[0], make(131, 200, precision)[0]
    names = ("accumulate", "average_pairs", "combine", "exchange", "prefetch", "select_middle")
    steps = []
    for plain in (False, True):
        if plain:
            scope = {**fused.__dict__, **{name: getattr(tile_plain, name) for name in names}}
            scope["_prefetch"] = numba.njit(FunctionType(fused._prefetch.py_func.__code__, scope))
            kernel = FunctionType(fused._fused_step.py_func.__code__, scope)
            monkeypatch.setattr(fused, "_fused_step", numba.njit(error_model="numpy")(kernel))
        steps.append([*run(few, 2, True, kernels.Rule.median(12)), *run(many, 2, True, kernels.Rule.median(131))])
        steps[-1] += [pairs(few, 12).direction, pairs(many, 131).direction]
        monkeypatch.undo()
    for one, other in zip(*steps, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
