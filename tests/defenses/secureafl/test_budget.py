from collections import Counter

import numpy as np
import pytest

from secureafl.defenses.secureafl import Arrival, StepBudget
from secureafl.types import ClientId


def arrives(budget: StepBudget, client: int, counts: bool = True) -> bool:
    return budget.spend(Arrival(ClientId(client), 0, True, 1.0, counts=counts))


def test_clients_of_one_pace_always_have_steps() -> None:
    budget, rng = StepBudget(), np.random.default_rng(0)
    moved = Counter(arrives(budget, int(rng.integers(30))) for _ in range(3000))
    assert moved[True] > 0.99 * 3000


def flooded(num_flooders: int, each: int = 100, laps: int = 100) -> Counter[int]:
    """Thirty clients that come in turn, and some that come so often in between."""
    budget, moved = StepBudget(per_interval=2.0, burst=8.0), Counter[int]()
    for lap in range(laps):
        for client in range(30):
            moved[client] += arrives(budget, client, counts=lap >= 5)
            for _ in range(each):
                for flooder in range(50, 50 + num_flooders):
                    moved[flooder] += arrives(budget, flooder)
    return moved


def test_a_client_a_thousand_times_as_fast_moves_the_model_no_more_often_than_twice_as_others() -> None:
    moved = flooded(1)
    assert all(moved[client] == 100 for client in range(30)), "nobody else pays for it"
    assert moved[50] <= 8 + 2 * 100


def test_colluders_that_flood_together_are_limited_once_the_usual_interval_has_grown() -> None:
    short, long = flooded(6, each=10), flooded(6, each=10, laps=200)
    assert all(long[client] == 200 for client in range(30)), "nobody else pays for it"
    assert all(long[flooder] - short[flooder] <= 2 * 100 for flooder in range(50, 56))


def test_the_first_to_answer_is_limited_before_anyone_else_has() -> None:
    budget = StepBudget()
    for client in range(31):
        budget.meet(ClientId(client), "")
    assert sum(arrives(budget, 30, counts=False) for _ in range(1000)) < 8 + 2 * 1000 / 30


def test_if_some_are_gone_the_others_are_soon_unlimited() -> None:
    budget = StepBudget()
    for _ in range(5):
        for client in range(18):
            arrives(budget, client)
    moved = [arrives(budget, client) for _ in range(60) for client in range(10)]
    assert np.mean(moved[-100:]) == 1.0


def test_if_most_are_gone_the_others_still_move_the_model() -> None:
    budget = StepBudget()
    for _ in range(5):
        for client in range(100):
            arrives(budget, client)
    moved = [arrives(budget, client) for _ in range(300) for client in range(10)]
    assert np.mean(moved[-1000:]) == pytest.approx(2.0 * 9 / 100, rel=0.1)


def test_a_federation_of_one_is_not_limited() -> None:
    budget = StepBudget()
    assert all(arrives(budget, 0) for _ in range(200))


def test_new_names_do_not_slow_the_others_down() -> None:
    budget, name, moved = StepBudget(), 1000, []
    for lap in range(300):
        for client in range(12):
            moved.append(arrives(budget, client, counts=lap > 5))
            for _ in range(5):
                name += lap > 10
                arrives(budget, name, counts=False)
    assert np.mean(moved[500:]) == 1.0


def test_a_loaded_budget_goes_on_alike() -> None:
    one, other, rng = StepBudget(), StepBudget(), np.random.default_rng(1)
    for _ in range(200):
        arrives(one, int(rng.integers(4)) if rng.random() < 0.3 else 9)
    other.load_state_dict(one.state_dict())
    clients = [int(rng.integers(4)) if rng.random() < 0.3 else 9 for _ in range(200)]
    assert [arrives(one, client) for client in clients] == [arrives(other, client) for client in clients]
