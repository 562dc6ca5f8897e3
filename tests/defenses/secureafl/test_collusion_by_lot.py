import numpy as np
import pytest

from secureafl import kernels
from secureafl.defenses.secureafl import Arrival
from secureafl.defenses.secureafl.collusion_by_lot import GroupsByLot, count_alike
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.types import ClientId, Vector

DIM = 20_000


def noisy(goal: Vector, rng: np.random.Generator, noise: float = 2.0) -> Vector:
    """An update towards a goal, most of it noise."""
    return (goal + noise * rng.normal(size=len(goal))).astype(np.float32)


def hear(groups: GroupsByLot, client: int, update: Vector) -> None:
    """Let the groups hear of an update as a pipeline would."""
    assert groups.signs is not None
    found = kernels.measure(update, update, signs=groups.signs, width=WIDTH)
    sketch = found.sketch / found.square**0.5 if found.square > 0.0 else None
    arrival = Arrival(ClientId(client), number=0, known=True, norm=found.square**0.5, sketch=sketch)
    groups.hear(arrival, accepted=True, remembered=True)


def heard(groups: list[int], shared: float = 0.0, num_updates: int = 30) -> GroupsByLot:
    """Groups of clients of these sizes with one goal each; `shared` is how much all goals have in common."""
    rng = np.random.default_rng(1)
    common, own = rng.normal(size=DIM), rng.normal(size=(len(groups), DIM))
    goals = np.repeat(own, groups, axis=0) + shared * common
    likeness = GroupsByLot(DIM, 0.5, 0.9, seed=3)
    for _ in range(num_updates):
        for client, goal in enumerate(goals):
            hear(likeness, client, noisy(goal, rng))
    return likeness


@pytest.mark.parametrize(("size", "num_votes"), [(3, 3), (6, 1.5), (12, 0.75)])
def test_the_larger_a_group_among_small_ones_the_fewer_votes_it_has(size: int, num_votes: float) -> None:
    likeness = heard([3] * 10 + [size])
    assert [likeness.num_alike(ClientId(client)) for client in (0, 29, 30, 29 + size)] == [3, 3, size, size]
    assert likeness.share(ClientId(0)) == 1.0
    absent = [likeness.absent(arrival) for arrival in range(400)]
    assert all(client >= 30 for who in absent for client in who)
    assert np.mean([size - len(who) for who in absent]) == pytest.approx(num_votes, abs=0.2)


def test_what_everyone_asks_for_makes_no_one_alike() -> None:
    likeness = heard([1] * 20 + [6], shared=5.0)
    assert [likeness.num_alike(ClientId(client)) for client in (0, 19, 20, 25)] == [1, 1, 6, 6]


def test_where_most_are_alike_nobody_loses_a_vote() -> None:
    likeness = heard([1, 1, 1, 1, 16])
    assert likeness.absent(7) == frozenset()


def test_masks_that_cancel_out_over_time_hide_nobody() -> None:
    rng = np.random.default_rng(5)
    goals = rng.normal(size=(13, DIM))
    likeness, masks = GroupsByLot(DIM, 0.5, 0.9, seed=3), np.zeros((20, DIM))
    for turn in range(30):
        masks = -masks if turn % 2 else 2.0 * rng.normal(size=(20, DIM))
        for client, mask in enumerate(masks):
            hear(likeness, client, (goals[min(client, 12)] + mask).astype(np.float32))
    assert likeness.num_alike(ClientId(12)) == 8
    assert likeness.num_alike(ClientId(0)) == 1


def test_the_same_arrival_draws_the_same_lots() -> None:
    one, other = heard([2] * 6 + [9]), heard([2] * 6 + [9])
    assert [one.absent(arrival) for arrival in range(50)] == [other.absent(arrival) for arrival in range(50)]
    assert len({one.absent(arrival) for arrival in range(50)}) > 10


def test_a_seed_of_the_signs_alone_leaves_the_lots_as_they_are() -> None:
    one, other = GroupsByLot(DIM, seed=3), GroupsByLot(DIM, seed=3, sketch_seed=4)
    np.testing.assert_array_equal(other.signs, GroupsByLot(DIM, seed=4).signs)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(other.signs, one.signs)
    other.load_state_dict(heard([2] * 6 + [9]).state_dict())
    one.load_state_dict(other.state_dict())
    assert [one.absent(arrival) for arrival in range(50)] == [other.absent(arrival) for arrival in range(50)]


def test_among_a_few_nobody_is_compared() -> None:
    likeness = heard([1] * 4 + [5])
    assert likeness.num_alike(ClientId(8)) == 1
    assert likeness.absent(0) == frozenset()


def test_an_update_of_nothing_but_zeros_says_nothing() -> None:
    likeness = heard([2] * 6)
    before = likeness.state_dict()
    hear(likeness, 0, np.zeros(DIM, np.float32))
    assert all(np.array_equal(before[key], value) for key, value in likeness.state_dict().items())


def test_a_loaded_state_goes_on_alike() -> None:
    one, rng = heard([2] * 6 + [9], num_updates=4), np.random.default_rng(8)
    other = GroupsByLot(DIM, 0.5, 0.9, seed=3)
    other.load_state_dict(one.state_dict())
    for client in range(21):
        update = rng.normal(size=DIM).astype(np.float32)
        hear(one, client, update)
        hear(other, client, update)
    ours, theirs = one.state_dict(), other.state_dict()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert one.absent(9) == other.absent(9)


def test_sketches_keep_cosines() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(size=DIM)
    b = 0.6 * a + 0.8 * rng.normal(size=DIM)
    likeness = GroupsByLot(DIM, 0.5, 0.9, seed=0)
    hear(likeness, 0, a.astype(np.float32))
    hear(likeness, 1, b.astype(np.float32))
    first, second = likeness.state_dict()["sketches"]
    cosine = float(first @ second / np.sqrt((first @ first) * (second @ second)))
    assert cosine == pytest.approx(0.6, abs=3 / np.sqrt(WIDTH))


def test_rows_are_counted_by_their_cosines() -> None:
    rows = np.array([[1, 0], [1, 0.1], [0, 1], [0, 0]], np.float32)
    assert count_alike(rows, 0.5).tolist() == [2, 2, 1, 1]
