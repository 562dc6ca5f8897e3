import numpy as np
import pytest

from secureafl.defenses.secureafl import Arrival, Directions, Groups
from secureafl.defenses.secureafl.collusion import LAPS
from secureafl.defenses.secureafl.recount import MAX_ANCHORS, Recount
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.types import ClientId, Vector


def literal_alike(sketches: Vector, limit: float = 0.5) -> list[int]:
    """The count as the formulas have it, one number at a time."""
    n = len(sketches)
    rows = sketches - np.median(sketches, axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows @ rows.T
    profiles = np.zeros((n, n))
    for k in range(n):
        middle = np.median([cosines[j, k] for j in range(n) if j != k])
        for i in range(n):
            profiles[i, k] = 0.0 if i == k else cosines[i, k] - middle
    least = max(0.6, 3.5 / np.sqrt(n - 2))
    counts = []
    for i in range(n):
        count = 0
        for j in range(n):
            if i != j:
                others = [k for k in range(n) if k not in (i, j)]
                a, b = profiles[i, others], profiles[j, others]
                pattern = a @ b / np.sqrt((a @ a) * (b @ b))
                count += cosines[i, j] > limit or (pattern > least and cosines[i, j] > 0.05)
        counts.append(count)
    return counts


def sketches(groups: list[int], seed: int = 0, own: float = 0.6) -> Vector:
    """Clients in groups of these sizes with one goal each."""
    rng = np.random.default_rng(seed)
    goals = np.repeat(rng.normal(size=(len(groups), WIDTH)), groups, axis=0)
    return np.asarray(goals + own * rng.normal(size=goals.shape), np.float32)


def test_the_count_in_parts_is_the_literal_one() -> None:
    rows = sketches([1] * 20 + [4, 9], own=1.2)
    recount = Recount([ClientId(k) for k in range(len(rows))], rows, 0.5)
    while recount.work():
        pass
    found = [recount.alike(ClientId(k), row) for k, row in enumerate(rows)]
    assert found == literal_alike(rows.astype(np.float64))
    assert max(found) == 8


def test_who_is_no_anchor_is_compared_with_all_of_them() -> None:
    rows = sketches([1] * 30 + [12])
    recount = Recount([ClientId(k) for k in range(36)], rows[:36], 0.5)
    while recount.work():
        pass
    assert recount.alike(ClientId(40), rows[40]) == 6
    assert recount.alike(ClientId(99), sketches([1], seed=9)[0]) == 0


def heard(groups: list[int], rounds: int = 3, vouched: tuple[str, ...] = ()) -> Groups:
    directions, rows = Directions(4, seed=1), sketches(groups)
    stage = Groups(directions, vouched=vouched)
    for client in range(len(rows)):
        stage.meet(ClientId(client), f"site-{client}")
    for _ in range(rounds):
        for client, row in enumerate(rows):
            arrival = Arrival(ClientId(client), 0, True, 1.0, sketch=row / np.linalg.norm(row))
            for votes in (directions, stage):
                votes.hear(arrival, accepted=True, remembered=True)
    return stage


def test_a_large_group_loses_its_votes_and_a_small_one_keeps_them() -> None:
    stage = heard([2] * 20 + [3, 10])
    weights = [stage.weight(ClientId(client)) for client in range(53)]
    assert weights[:43] == [1.0] * 43, "three alike are not many where two are usual"
    assert max(weights[43:]) == pytest.approx((1.5 * 2 / 10) ** 4)


def test_a_group_that_the_operator_vouches_for_keeps_its_votes() -> None:
    stage = heard([2] * 20 + [10], vouched=tuple(f"site-{client}" for client in range(40, 50)))
    assert [stage.weight(ClientId(client)) for client in range(40, 50)] == [1.0] * 10


def test_a_count_of_many_takes_several_arrivals_and_finds_about_as_many() -> None:
    stage = heard([1] * 700 + [80], rounds=4 * LAPS + 1)
    assert len(stage._alike.clients()) > MAX_ANCHORS
    colluders = [stage.num_alike(ClientId(client)) for client in range(700, 780)]
    assert 40 < np.mean(colluders) < 120
    assert max(stage.weight(ClientId(client)) for client in range(700, 780)) < 1e-3
    assert np.mean([stage.weight(ClientId(client)) for client in range(700)]) > 0.99


def test_who_is_left_out_makes_nobody_else_alike() -> None:
    stage = heard([2] * 20 + [10])
    for client in range(42, 50):
        stage._directions.leave_out(ClientId(client), True)
    rows = sketches([2] * 20 + [10])
    for client, row in [*enumerate(rows)] * LAPS:
        arrival = Arrival(ClientId(client), 0, True, 1.0, sketch=row / np.linalg.norm(row))
        for votes in (stage._directions, stage):
            votes.hear(arrival, accepted=True, remembered=True)
    assert stage.weight(ClientId(40)) == 1.0


@pytest.mark.parametrize("stop", [3, 57, 111])
def test_a_state_saved_amid_a_count_goes_on_alike(stop: int) -> None:
    rows = sketches([1] * 300 + [9])
    stages = []
    for _ in range(2):
        directions = Directions(4, seed=1)
        stages.append((directions, Groups(directions, seed=7)))

    def hear(stage: tuple[Directions, Groups], number: int) -> None:
        row = rows[number % len(rows)]
        arrival = Arrival(ClientId(number % len(rows)), number, True, 1.0, sketch=row / np.linalg.norm(row))
        for votes in stage:
            votes.hear(arrival, accepted=True, remembered=True)

    first, last = 2 * LAPS * len(rows) + stop, (4 * LAPS + 1) * len(rows)
    for number in range(first):
        hear(stages[0], number)
    for one, other in zip(*stages, strict=True):
        other.load_state_dict(one.state_dict())
    for number in range(first, last):
        for stage in stages:
            hear(stage, number)
        if number % 50 == 0 or number + 1 == last:
            for one, other in zip(*stages, strict=True):
                for key, value in one.state_dict().items():
                    np.testing.assert_array_equal(value, other.state_dict()[key], err_msg=key)
    assert len(stages[0][1]._alike.clients()) > 300
