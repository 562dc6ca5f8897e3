"""Clients of the laboratory that add noise for their privacy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secureafl.errors import SettingsError
from secureafl.lab.cells.build import build
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.simulation.private_clients import PrivateClients
from secureafl.lab.simulation.task import Task
from secureafl.types import ClientId

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Opacus's, of PyTorch

SHARDS = [np.arange(100), np.arange(100, 300)]


def clients(epsilon: float = 8.0, sample_norm: float = 1.0) -> tuple[Task, PrivateClients]:
    task = Task("small-cnn", 10, (1, 28, 28))
    private = PrivateClients(task, SHARDS, epsilon=epsilon, sample_norm=sample_norm, batch_size=20, rounds=100)
    return task, private


def batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(256, size=(size, 1, 28, 28)).astype(np.uint8), rng.integers(10, size=size)


def test_without_cutting_and_noise_it_is_the_gradient_of_the_batch() -> None:
    task, private = clients(epsilon=1e6, sample_norm=1e4)
    params = task.initial(0)
    x, y = batch(20)
    noiseless = PrivateClients(task, SHARDS, epsilon=1e9, sample_norm=1e4, batch_size=20, rounds=1)
    noiseless._task._optimizer.noise_multiplier = 0.0  # Opacus finds no multiplier that is as small
    sent = noiseless.gradient(params, x, y, np.random.default_rng(0))
    np.testing.assert_allclose(sent, task.gradient(params, x, y), atol=1e-6)
    assert not np.allclose(private.gradient(params, x, y, np.random.default_rng(0)), sent, atol=1e-3)


def test_each_sample_counts_at_most_its_length() -> None:
    task, private = clients(sample_norm=0.01)
    private._task._optimizer.noise_multiplier = 0.0
    x, y = batch(20)
    sent = private.gradient(task.initial(0), x, y, np.random.default_rng(0))
    assert 0.0 < np.linalg.norm(sent) <= 0.01 * (1.0 + 1e-5)
    assert np.linalg.norm(task.gradient(task.initial(0), x, y)) > 0.1


def test_noise_follows_from_the_stream_alone() -> None:
    task, private = clients()
    x, y = batch(20)
    first, again, other = (private.gradient(task.initial(0), x, y, np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    deviation = private.noise_multiplier * 1.0 / 20
    assert np.std(first - other) == pytest.approx(deviation * 2**0.5, rel=0.05)


def test_an_empty_draw_sends_noise() -> None:
    task, private = clients()
    x, y = batch(0)
    sent = private.gradient(task.initial(0), x, y, np.random.default_rng(0))
    assert np.std(sent) == pytest.approx(private.noise_multiplier / 20, rel=0.05)


def test_samples_are_drawn_each_by_its_own_lot() -> None:
    _, private = clients()
    sizes = [len(private.draw(ClientId(1), np.random.default_rng(seed))) for seed in range(200)]
    assert np.mean(sizes) == pytest.approx(20, rel=0.1)
    assert len(set(sizes)) > 5


def test_what_is_given_away_is_counted_from_who_sent_how_often() -> None:
    _, private = clients(epsilon=4.0)
    often, seldom = private.given_away([0] * 60), private.given_away([0] * 10)
    assert seldom < often <= 4.0
    assert private.given_away([1] * 60) < often  # with more samples each is drawn less often
    assert private.given_away([]) == 0.0


def test_a_cell_with_privacy_says_what_was_given_away(tiny_source: Path) -> None:
    cell = CellSettings(
        source=str(tiny_source), architecture="small-cnn", num_clients=8, batch_size=8, rounds=20, epsilon=8.0
    )
    lab = build(cell)
    for _ in range(20):
        lab.simulation.step()
    private = lab.simulation.private
    assert private is not None
    assert 0.0 < private.given_away(lab.simulation.trace.columns()["client"].tolist()) <= 8.0
    assert "epsilon" not in CellSettings().complete()  # cells without keep their identity


def test_private_clients_do_not_train_for_several_steps() -> None:
    with pytest.raises(SettingsError, match="leave epsilon or local_steps out"):
        CellSettings(epsilon=8.0, local_steps=8)
