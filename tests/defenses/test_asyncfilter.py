import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl.defenses import AsyncFilter, AsyncFilterSettings
from secureafl.defenses.asyncfilter import highest_cluster
from secureafl.types import Reason

HERE = model(0, [0, 0])


def test_the_highest_of_three_clusters() -> None:
    assert highest_cluster(np.array([0.1, 0.9, 0.12, 0.5, 0.52, 0.88])) == [5, 1]
    assert highest_cluster(np.array([0.2, 0.2, 0.8, 0.8])) == []
    assert highest_cluster(np.array([0.3, 0.1, 0.2])) == [0]


def test_the_furthest_update_of_a_round_is_dropped() -> None:
    defense = AsyncFilter(2, AsyncFilterSettings(buffer_size=4, scale=2.0))
    for client, delta in enumerate(([1, 1], [1, 2], [50, 50])):
        assert defense.step(update(client, HERE, delta), HERE).reason == Reason.BUFFERED
    last = defense.step(update(3, HERE, [1, 3]), HERE)
    assert (last.accepted, last.reason, last.evidence["num_dropped"]) == (True, Reason.ACCEPTED, 1.0)
    assert last.direction is not None
    assert last.direction.tolist() == [2, 4]


def test_whoever_fills_the_buffer_hears_what_it_says_of_him() -> None:
    defense = AsyncFilter(2, AsyncFilterSettings(buffer_size=4))
    for client, delta in enumerate(([1, 1], [1, 2], [1, 3])):
        defense.step(update(client, HERE, delta), HERE)
    last = defense.step(update(3, HERE, [50, 50]), HERE)
    assert (last.accepted, last.reason) == (False, Reason.FAR_FROM_GROUP)
    assert last.direction is not None
    assert last.direction.tolist() == [1, 2]


def test_only_updates_for_the_same_round_are_compared() -> None:
    """Five updates for the old model are alike, two for the new one are too few to be judged."""
    defense = AsyncFilter(1, AsyncFilterSettings(buffer_size=3))
    old = model(0, [0])
    for client in range(3):
        defense.step(update(client, old, [1.0 + client]), model(client, [0]))
    new = model(3, [9])
    defense.step(update(0, new, [100]), new)
    defense.step(update(1, old, [1]), model(4, [9]))
    verdict = defense.step(update(2, new, [101]), model(5, [9]))
    assert verdict.evidence["num_dropped"] == 0.0
    assert verdict.direction is not None
    assert verdict.direction.tolist() == pytest.approx([202 / 3])


def test_a_later_group_is_compared_with_all_updates_of_its_round() -> None:
    defense = AsyncFilter(1, AsyncFilterSettings(buffer_size=3))
    old = model(0, [0])
    for client, value in enumerate((0.0, 0.0, 0.0)):
        defense.step(update(client, old, [value]), model(client, [0]))
    for client, value in enumerate((4.0, 7.0)):
        defense.step(update(client, old, [value]), model(3 + client, [0]))
    verdict = defense.step(update(2, old, [1.0]), model(5, [0]))  # average of all six: 2, not the 4 of these three
    assert verdict.direction is not None
    assert verdict.direction.tolist() == [2.5]  # without the 7, which is 5 away
    assert verdict.evidence["distance"] == pytest.approx(1 / 8)


def test_it_keeps_few_rounds() -> None:
    problem = Quadratic(num_clients=9)
    defense = AsyncFilter(problem.dim, AsyncFilterSettings(buffer_size=5, max_rounds=4))
    Federation(problem, defense).run(200)
    state = defense.state_dict()
    assert len(state["ends"]) == 4
    assert len(state["averages"]) <= 5
