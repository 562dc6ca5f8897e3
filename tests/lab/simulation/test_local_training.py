from pathlib import Path

import numpy as np
import pytest
from tests.lab.tiny import tiny_cell

from secureafl.errors import SettingsError
from secureafl.lab.cells.build import build
from secureafl.lab.cells.cell import OF_LOCAL_TRAINING, CellSettings
from secureafl.lab.cells.experiment import run_cell
from secureafl.lab.simulation.local_training import LocalTraining, repeated
from secureafl.lab.simulation.task import Task


def setup(num_samples: int = 12) -> tuple[Task, np.ndarray, np.ndarray, np.ndarray]:
    task, rng = Task("small-cnn", 10, (1, 28, 28)), np.random.default_rng(0)
    x = rng.random((num_samples, 1, 28, 28), np.float32)
    return task, task.initial(0), x, rng.integers(0, 10, num_samples)


def test_what_is_sent_is_the_way_of_all_steps() -> None:
    task, params, x, y = setup()
    sent = LocalTraining(task, 3, 0.1).gradient(params, x, y)
    here = params.copy()
    for first in (0, 4, 8):
        here = here - np.float32(0.1) * task.gradient(here, x[first : first + 4], y[first : first + 4])
    np.testing.assert_allclose(sent, params - here, rtol=1e-5, atol=1e-7)
    assert sent @ task.gradient(params, x, y) > 0, "uphill, like a gradient"


def test_fewer_samples_than_steps_are_one_step_each() -> None:
    task, params, x, y = setup(2)
    np.testing.assert_array_equal(
        LocalTraining(task, 5, 0.1).gradient(params, x, y), LocalTraining(task, 2, 0.1).gradient(params, x, y)
    )


def test_few_trusted_samples_are_used_over_and_over() -> None:
    assert repeated(np.array([3, 5]), 5).tolist() == [3, 5, 3, 5, 3]
    assert repeated(np.array([3, 5]), 1).tolist() == [3, 5]


def test_cells_whose_clients_send_gradients_keep_their_names() -> None:
    assert not set(OF_LOCAL_TRAINING) & CellSettings().complete().keys()
    assert CellSettings(local_steps=8).cell_id() != CellSettings().cell_id()
    assert CellSettings(local_steps=8).complete()["local_lr"] == 0.01
    with pytest.raises(SettingsError, match=r"local_lr = .* does nothing"):
        CellSettings(local_lr=0.1)


def test_clients_and_server_train_on_as_many_mini_batches(tiny_source: Path) -> None:
    lab = build(tiny_cell(tiny_source, local_steps=3, defense="aflguard"))
    assert lab.simulation.data.batch_size == 3 * lab.settings.batch_size
    assert isinstance(lab.simulation.task, LocalTraining)


@pytest.mark.parametrize("attack", ["none", "label_flip", "scaling", "pgd"])
def test_cells_run_with_local_training(attack: str, tiny_source: Path, tmp_path: Path) -> None:
    result = run_cell(tiny_cell(tiny_source, local_steps=3, server_lr=0.3, attack=attack), tmp_path)
    assert result["last"]["diverged"] == 0.0
