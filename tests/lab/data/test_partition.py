from collections.abc import Callable

import numpy as np
import pytest

from secureafl.errors import SettingsError
from secureafl.lab.arrays import Indices
from secureafl.lab.data import dirichlet, fang, iid, minority, time_blocks
from secureafl.lab.data.partition import client_groups
from secureafl.lab.streams import stream

NUM_SAMPLES = 20_000


def labels(num_classes: int = 10) -> Indices:
    return stream(0, "labels").integers(0, num_classes, NUM_SAMPLES)


@pytest.mark.parametrize(
    "deal",
    [
        lambda rng: fang(labels(), 50, 10, 0.5, rng),
        lambda rng: fang(labels(100), 7, 100, 0.9, rng),
        lambda rng: fang(labels(), 1, 10, 0.5, rng),
        lambda rng: dirichlet(labels(), 20, 10, 0.5, rng),
        lambda rng: iid(NUM_SAMPLES, 50, rng),
        lambda rng: minority(labels(), 50, 10, 9, 5, rng),
        lambda _: time_blocks(NUM_SAMPLES, 7),
    ],
)
def test_each_sample_is_dealt_once_and_the_same_again(deal: Callable[[np.random.Generator], list[Indices]]) -> None:
    parts = deal(stream(1, "partition"))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(NUM_SAMPLES))
    for part, again in zip(parts, deal(stream(1, "partition")), strict=True):
        np.testing.assert_array_equal(part, again)
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize(("num_clients", "num_classes"), [(50, 10), (13, 10), (10, 200)])
def test_home_share_is_within_four_sigma(num_clients: int, num_classes: int) -> None:
    """Also the other groups, and the clients within a group, get what they should."""
    probability, num_groups = 0.5, min(num_classes, num_clients)
    classes = labels(num_classes)
    parts = fang(classes, num_clients, num_classes, probability, stream(2, "partition"))
    groups = client_groups(num_clients, num_classes, stream(2, "partition"))
    for number, members in enumerate(groups):
        rows = np.concatenate([parts[client] for client in members])
        is_home = classes % num_groups == number
        for home, share in ((True, probability), (False, (1 - probability) / (num_groups - 1))):
            total = np.sum(is_home == home)
            sigma = np.sqrt(total * share * (1 - share))
            assert abs(np.sum(is_home[rows] == home) - total * share) < 4 * sigma
        for client in members:
            expected = len(rows) / len(members)
            assert abs(len(parts[client]) - expected) <= 4 * np.sqrt(expected)


def test_home_probability_of_one_over_z_is_uniform() -> None:
    classes = labels()
    parts = fang(classes, 50, 10, 1 / 10, stream(3, "partition"))
    counts = np.array([np.bincount(classes[part], minlength=10) for part in parts])  # (clients, classes)
    expected = np.bincount(classes) / 50
    chi_squared = np.sum((counts - expected) ** 2 / expected)
    freedom = 49 * 10
    assert abs(chi_squared - freedom) < 4 * np.sqrt(2 * freedom)


def test_home_probability_of_one_separates_the_classes() -> None:
    classes = labels()
    for part in fang(classes, 20, 10, 1.0, stream(4, "partition")):
        assert len(np.unique(classes[part])) == 1


def test_groups_are_shuffled_and_near_equal() -> None:
    groups = client_groups(13, 10, stream(5, "partition"))
    assert sorted(len(group) for group in groups) == [1] * 7 + [2] * 3
    assert sorted(np.concatenate(groups)) == list(range(13))
    assert len(client_groups(10, 200, stream(5, "partition"))) == 10


def test_a_small_concentration_is_further_from_iid() -> None:
    def imbalance(concentration: float) -> float:
        parts = dirichlet(labels(), 10, 10, concentration, stream(6, "partition"))
        return float(np.std([np.bincount(labels()[part], minlength=10) for part in parts]))

    assert imbalance(0.1) > 2 * imbalance(1.0) > 4 * imbalance(100.0)


def test_an_impossible_minimum_is_said() -> None:
    with pytest.raises(SettingsError, match="raise concentration"):
        dirichlet(labels(), 10, 10, 0.5, stream(7, "partition"), min_size=NUM_SAMPLES)


def test_iid_and_time_blocks_are_near_equal() -> None:
    assert sorted(len(part) for part in iid(11, 4, stream(8, "partition"))) == [2, 3, 3, 3]
    assert [part.tolist() for part in time_blocks(7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]


def test_a_minority_holds_one_class_and_only_that() -> None:
    classes = np.array([0, 1, 2, 1, 0, 1, 0, 2, 0, 1, 1])  # two of class 0 for each of two others, five of class 1
    parts = minority(classes, 4, 3, 1, 2, stream(9, "partition"))
    assert [sorted(classes[part]) for part in parts[2:]] == [[1, 1, 1], [1, 1]]
    assert sorted(np.concatenate(parts[:2])) == [0, 2, 4, 6, 7, 8]
    assert [len(part) for part in parts] == [3, 3, 3, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rng: fang(labels(), 0, 10, 0.5, rng), "num_clients = 0"),
        (lambda rng: fang(labels(), 5, 10, 1.5, rng), "home_probability = 1.5"),
        (lambda rng: fang(labels(), 5, 9, 0.5, rng), "num_classes = 9"),
        (lambda rng: fang(labels().astype(np.float32), 5, 9, 0.5, rng), "class number"),
        (lambda rng: dirichlet(labels(), 5, 10, 0.0, rng), "concentration = 0"),
        (lambda rng: iid(3, 4, rng), "num_clients = 4"),
        (lambda rng: minority(labels(), 50, 10, 10, 5, rng), "held_class = 10"),
        (lambda rng: minority(labels(), 50, 10, 9, 50, rng), "num_holders = 50"),
        (lambda rng: minority(np.array([0, 0, 0, 1]), 4, 2, 1, 2, rng), "num_clients = 2: 1 samples"),
    ],
)
def test_impossible_settings_are_named(call: Callable[[np.random.Generator], object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        call(stream(0, "partition"))
