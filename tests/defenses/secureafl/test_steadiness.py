import math

import numpy as np
import pytest

from secureafl.defenses.secureafl import Arrival, Directions, Steadiness
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.types import ClientId, Vector


class Both:
    """What clients keep asking for, and how steadily: in the order in which a pipeline tells them."""

    def __init__(self, limit: float = 1.5, decay: float = 0.95) -> None:
        self.directions = Directions(WIDTH, decay)
        self.steadiness = Steadiness(self.directions, limit)

    def hear(self, client: int, sketch: Vector, *, remembered: bool = True, counts: bool = True) -> dict[str, float]:
        arrival = Arrival(ClientId(client), 0, True, 1.0, counts=counts, sketch=sketch)
        for votes in (self.directions, self.steadiness):
            votes.hear(arrival, accepted=remembered, remembered=remembered)
        return arrival.evidence

    def weight(self, client: int) -> float:
        return self.steadiness.weight(ClientId(client))


def axis(number: int) -> Vector:
    return np.eye(1, WIDTH, number, dtype=np.float32)[0]


def noisy(rng: np.random.Generator, share: float, towards: Vector) -> Vector:
    """A direction of which `share` of the squared length points one way, and the rest anywhere."""
    noise = rng.standard_normal(WIDTH, np.float32)
    return np.float32(math.sqrt(share)) * towards + np.float32(math.sqrt((1 - share) / WIDTH)) * noise


def test_the_cosine_between_a_clients_own_updates_is_found_by_hand() -> None:
    both = Both()
    for _ in range(5):
        both.hear(0, axis(0))
        both.hear(0, axis(1))
    # Ten updates: of 45 pairs 20 are equal, the others at right angles.
    assert both.directions.own_cosine(ClientId(0)) == pytest.approx(20 / 45)
    for _ in range(50):
        both.hear(1, axis(0))
    assert both.directions.own_cosine(ClientId(1)) == pytest.approx(1.0), "also when the first ones weigh less"


def test_noise_takes_no_part_in_it_however_many_updates_there_are() -> None:
    both, rng = Both(), np.random.default_rng(0)
    for times in range(1, 301):
        both.hear(0, noisy(rng, 0.25, axis(0)))
        if times in {30, 100, 300}:
            assert both.directions.own_cosine(ClientId(0)) == pytest.approx(0.25, abs=0.06)


def test_who_is_steadier_than_usual_weighs_less_in_proportion() -> None:
    both, rng = Both(limit=1.5), np.random.default_rng(1)
    for _ in range(40):
        for client in range(12):
            both.hear(client, noisy(rng, 0.09, axis(0)))
        evidence = both.hear(99, axis(3))
    assert evidence["steadiness"] == pytest.approx(1.0)
    assert both.weight(99) == pytest.approx(1.5 * 0.3, rel=0.1)
    assert [both.weight(client) for client in range(12)] == [1.0] * 12


def test_noise_that_is_added_does_not_help() -> None:
    """What is asked for in the long run is the steady part times the weight: the same with noise and without."""
    both, rng = Both(limit=1.5), np.random.default_rng(2)
    for _ in range(60):
        for client in range(12):
            both.hear(client, noisy(rng, 0.09, axis(0)))
        both.hear(98, axis(3))
        both.hear(99, noisy(rng, 0.5, axis(4)))
    assert both.weight(99) * math.sqrt(0.5) == pytest.approx(both.weight(98), rel=0.1)


def test_where_everyone_is_steady_nobody_weighs_less() -> None:
    both = Both(limit=1.5)
    for _ in range(12):
        for client in range(12):
            both.hear(client, axis(client))
    assert all(both.weight(client) == 1.0 for client in range(12))


def test_few_updates_and_few_clients_say_nothing() -> None:
    both, rng = Both(limit=1.0), np.random.default_rng(3)
    for _ in range(9):
        for client in range(12):
            both.hear(client, noisy(rng, 0.09, axis(0)))
        assert "steadiness" not in both.hear(99, axis(3))
    assert both.weight(99) == 1.0
    alone = Both(limit=1.0)
    for _ in range(30):
        alone.hear(0, axis(0))
        alone.hear(1, noisy(rng, 0.09, axis(0)))
    assert alone.weight(0) == 1.0


def test_rejected_updates_and_too_many_newcomers_do_not_say_what_is_usual() -> None:
    both, rng = Both(limit=1.0), np.random.default_rng(4)
    for _ in range(30):
        for client in range(12):
            both.hear(client, noisy(rng, 0.09, axis(0)))
        for client in range(20, 60):
            both.hear(client, axis(3), counts=False)
    before = both.weight(20)
    assert before < 0.5
    both.hear(0, axis(0), remembered=False)
    assert both.weight(20) == before


def test_a_loaded_state_goes_on_alike() -> None:
    one, other, rng = Both(), Both(), np.random.default_rng(5)
    for _ in range(15):
        for client in range(12):
            one.hear(client, noisy(rng, 0.1 + 0.05 * client, axis(0)))
    one.steadiness.forget(ClientId(3))
    other.directions.load_state_dict(one.directions.state_dict())
    other.steadiness.load_state_dict(one.steadiness.state_dict())
    sketch = noisy(rng, 0.9, axis(2))
    assert one.hear(4, sketch) == other.hear(4, sketch)
    assert [one.weight(client) for client in range(12)] == [other.weight(client) for client in range(12)]
    assert one.weight(3) == 1.0
