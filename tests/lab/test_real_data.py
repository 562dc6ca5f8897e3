"""Each data set, for real: its size and first labels, and a few steps of its own network."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.real_data import RealData

from secureafl.lab.data import LabelKind, fang, time_blocks
from secureafl.lab.data.characters import SPACE, as_bytes, classes_of
from secureafl.lab.simulation.task import Task
from secureafl.lab.streams import stream

# Decoding takes long the first time; afterwards all of these are quick.
SETS = [
    pytest.param("fashion-mnist", "cnn", (1, 28, 28), 10),
    pytest.param("cifar10", "resnet20", (3, 32, 32), 10, marks=pytest.mark.slow),
    pytest.param("cifar100", "resnet20", (3, 32, 32), 100, marks=pytest.mark.slow),
    pytest.param("tiny-imagenet", "resnet20", (3, 64, 64), 200, marks=pytest.mark.slow),
    pytest.param("udacity", "resnet20", (3, 32, 64), None, marks=pytest.mark.slow),
    pytest.param("king-james", "char-mlp", (1, 8, 8), 28),
]


@pytest.mark.parametrize(("name", "architecture", "image_shape", "num_classes"), SETS)
def test_it_trains(
    load_real: RealData,
    name: str,
    architecture: str,
    image_shape: tuple[int, int, int],
    num_classes: int | None,
) -> None:
    dataset = load_real(name)
    assert dataset.image_shape == image_shape
    assert dataset.num_classes == num_classes
    assert len(dataset.train_x) == len(dataset.train_y) > len(dataset.test_x) == len(dataset.test_y)
    if num_classes is not None:
        assert set(np.unique(dataset.train_y)) == set(np.unique(dataset.test_y)) == set(range(num_classes))

    task = Task(architecture, num_classes, image_shape)
    params = task.initial(0)
    rows = np.sort(stream(0, "batch").choice(len(dataset.train_x), 16, replace=False))
    x, y = dataset.train_x[rows], dataset.train_y[rows]
    losses = [task.loss(params, x, y)]
    for _ in range(4):
        gradient = task.gradient(params, x, y)
        assert np.isfinite(gradient).all()
        params = params - np.float32(0.01) * gradient
        losses.append(task.loss(params, x, y))
    assert losses[-1] < losses[0]


def test_fashion_mnist_is_complete_and_in_order(load_real: RealData) -> None:
    dataset = load_real("fashion-mnist")
    assert np.bincount(dataset.train_y).tolist() == [6000] * 10
    assert np.bincount(dataset.test_y).tolist() == [1000] * 10
    assert dataset.train_y[:8].tolist() == [9, 0, 0, 3, 0, 2, 7, 2]
    assert 0.28 < float(np.mean(dataset.train_x[:2000])) / 255 < 0.30


def test_fashion_mnist_is_dealt_as_in_the_paper(load_real: RealData) -> None:
    dataset = load_real("fashion-mnist")
    parts = fang(dataset.train_y, 50, 10, 0.5, stream(0, "partition"))
    assert sum(map(len, parts)) == 60_000
    share = [np.bincount(dataset.train_y[part], minlength=10).max() / len(part) for part in parts]
    assert np.mean(share) == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "num_classes"), [("fine", 100), ("coarse", 20)])
def test_cifar100_has_two_kinds_of_labels(load_real: RealData, labels: LabelKind, num_classes: int) -> None:
    dataset = load_real("cifar100", labels)
    assert dataset.num_classes == num_classes
    assert len(np.unique(dataset.train_y)) == num_classes


@pytest.mark.slow
def test_udacity_drives_both_ways_and_in_every_block(load_real: RealData) -> None:
    dataset = load_real("udacity")
    for targets in (dataset.train_y, dataset.test_y):
        assert -1 <= targets.min() < -0.2
        assert 0.2 < targets.max() <= 1
    assert all(np.std(dataset.train_y[part]) > 0.01 for part in time_blocks(len(dataset.train_y), 10))


def test_king_james_begins_at_the_beginning_and_leaves_every_fifth_chapter_out(load_real: RealData) -> None:
    dataset = load_real("king-james")
    assert (len(dataset.train_x), len(dataset.test_x)) == (60_000, 10_000)
    first = "In the beginning God created the heaven and the earth. And the earth was"
    np.testing.assert_array_equal(dataset.train_x[0], as_bytes(classes_of(first[:64])).reshape(1, 8, 8))
    assert dataset.train_y[0] == classes_of(first[64])
    fifth = "This is the book of the generations of Adam. In the day that God created man"  # Genesis 5
    np.testing.assert_array_equal(dataset.test_x[0], as_bytes(classes_of(fifth[:64])).reshape(1, 8, 8))
    assert np.bincount(dataset.test_y).argmax() == SPACE
    assert np.mean(dataset.test_y == SPACE) == pytest.approx(0.19, abs=0.01)
