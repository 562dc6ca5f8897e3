import math

import numpy as np
import pytest

from secureafl.lab.attacks.attack import Batch
from secureafl.lab.simulation.task import Task
from secureafl.lab.simulation.trusted_data import draw_trusted, make_reference, make_scorer
from secureafl.types import Model


@pytest.fixture
def batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch(rng.integers(0, 256, (6, 1, 28, 28)).astype(np.uint8), np.arange(6))


def test_trusted_samples_come_from_the_union_of_the_clients() -> None:
    shards = [np.array([3, 5, 7]), np.array([11])]
    assert set(draw_trusted(shards, 3, np.random.default_rng(0)).tolist()) <= {3, 5, 7, 11}
    assert draw_trusted(shards, 10, np.random.default_rng(0)).tolist() == [3, 5, 7, 11]


def test_the_reference_is_the_gradient_on_them(batch: Batch) -> None:
    task = Task("small-cnn", 10, (1, 28, 28))
    params = task.initial(0)
    np.testing.assert_array_equal(make_reference(task, batch)(Model(0, params)), task.gradient(params, *batch))


def test_the_reference_is_computed_when_the_model_moved(batch: Batch) -> None:
    task = Task("small-cnn", 10, (1, 28, 28))
    reference = make_reference(task, batch)
    first, second = task.initial(0), task.initial(1)
    at_first = reference(Model(0, first))
    assert reference(Model(1, first)) is at_first, "an arrival was rejected"
    np.testing.assert_array_equal(reference(Model(2, second)), task.gradient(second, *batch))
    np.testing.assert_array_equal(reference(Model(3, first)), at_first)


def test_a_uniform_predictor_scores_ln_z(batch: Batch) -> None:
    task = Task("small-cnn", 10, (1, 28, 28))
    score = make_scorer(task, batch)(np.zeros(task.dim, np.float32))
    assert score.loss == pytest.approx(math.log(10))
    assert score.entropy == pytest.approx(math.log(10))


def test_loss_is_the_tasks_own(batch: Batch) -> None:
    task = Task("small-cnn", 10, (1, 28, 28))
    params = task.initial(1)
    assert make_scorer(task, batch)(params).loss == pytest.approx(task.loss(params, *batch), rel=1e-5)


def test_an_overflowing_model_scores_without_an_error(batch: Batch) -> None:
    task = Task("small-cnn", 10, (1, 28, 28))
    score = make_scorer(task, batch)(np.full(task.dim, 1e30, np.float32))
    assert not math.isfinite(score.loss)


def test_a_regression_has_no_entropy(batch: Batch) -> None:
    task = Task("small-cnn", None, (1, 28, 28))
    score = make_scorer(task, Batch(batch.x, batch.y.astype(np.float32)))(np.zeros(task.dim, np.float32))
    assert score.entropy == 0.0
    assert score.loss == pytest.approx(55 / 6)  # zero predicted for 0 … 5: (0 + 1 + 4 + 9 + 16 + 25) / 6
