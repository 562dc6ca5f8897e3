import numpy as np

from secureafl.defenses.secureafl import Arrival, Directions, PullsBack
from secureafl.defenses.secureafl.opposition import PATIENCE
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.types import ClientId, Reason

NUM_CLIENTS = 20
FLIPS, ELSEWHERE = (0, 1, 2), (3, 4)
COMMON, OTHER = np.eye(WIDTH, dtype=np.float32)[:2]


class Rounds:
    """Clients of three kinds: most pull along, some back, and two ask for something that nobody else does."""

    def __init__(self) -> None:
        self.directions = Directions(4, seed=1)
        self.judge = PullsBack(self.directions)
        self.number = 0

    def hear(self, client: int, agreement: float, sketch: np.ndarray, curvature: float | None = None) -> str | None:
        arrival = Arrival(
            ClientId(client), self.number, True, 1.0, agreement=agreement, curvature=curvature, sketch=sketch
        )
        self.number += 1
        reason = self.judge.judge(arrival)
        self.directions.hear(arrival, accepted=reason is None, remembered=True)
        return reason

    def play(self, rounds: int, strength: float = 0.5) -> None:
        for _ in range(rounds):
            for client in range(NUM_CLIENTS):
                if client in FLIPS:
                    self.hear(client, -strength, -COMMON)
                elif client in ELSEWHERE:
                    self.hear(client, -strength, OTHER - 0.3 * COMMON)
                else:
                    self.hear(client, strength, COMMON)

    def settle(self, rounds: int, curvature: float | None = None) -> None:
        """Nobody pulls along any more."""
        for _ in range(rounds):
            for client in range(5, NUM_CLIENTS):
                self.hear(client, 0.0, COMMON, curvature)


def test_who_pulls_back_is_excluded_and_who_asks_for_something_else_is_not() -> None:
    rounds = Rounds()
    rounds.play(4)
    assert rounds.judge.excluded() == dict.fromkeys(map(ClientId, FLIPS), Reason.AGAINST_CONSENSUS)
    assert [rounds.judge.weight(ClientId(client)) for client in (0, 3, 9)] == [0.0, 1.0, 1.0]
    assert set(map(ClientId, FLIPS)).isdisjoint(rounds.directions.counted)


def test_who_is_like_others_in_all_comes_back() -> None:
    rounds = Rounds()
    rounds.play(4)
    rounds.settle(4, curvature=0.3)
    for _ in range(60):
        rounds.hear(0, 0.6, COMMON, 0.1)
        rounds.hear(1, -0.8, COMMON, 0.1)
        rounds.hear(2, 0.6, COMMON, -0.1)
    assert set(rounds.judge.excluded()) == {1, 2}
    assert ClientId(0) in rounds.directions.counted


def test_who_pushes_on_is_found_also_when_nobody_pulls_along() -> None:
    rounds = Rounds()
    rounds.settle(10, curvature=0.3)
    for _ in range(3):
        rounds.hear(0, 0.0, COMMON, -0.3)
    assert not rounds.judge.excluded(), "so few changes say nothing"
    for _ in range(3):
        rounds.hear(0, 0.0, COMMON, -0.3)
        rounds.hear(1, 0.0, COMMON, 0.0)
        rounds.hear(2, 0.0, COMMON, -0.1)
    assert set(rounds.judge.excluded()) == {0}
    assert rounds.judge.would_oppose(ClientId(0), 0.0, COMMON, -0.3)
    assert not rounds.judge.would_oppose(ClientId(5), 0.0, COMMON, -0.3), "once is not enough"


def test_while_hardly_anyone_pushes_back_nobody_is_found_by_that() -> None:
    rounds = Rounds()
    rounds.settle(10, curvature=0.02)
    for _ in range(20):
        rounds.hear(0, 0.0, COMMON, -0.5)
    assert not rounds.judge.excluded()


def test_while_nobody_pulls_along_everyone_stays_as_they_are() -> None:
    rounds = Rounds()
    rounds.play(4)
    rounds.settle(20)
    for _ in range(60):
        rounds.hear(0, 1.0, COMMON)
    assert set(rounds.judge.excluded()) == set(map(ClientId, FLIPS))
    for _ in range(60):
        rounds.hear(9, -1.0, -COMMON)
    assert ClientId(9) not in rounds.judge.excluded()


def test_an_exclusion_that_nothing_confirms_ends_for_who_is_like_others() -> None:
    rounds = Rounds()
    rounds.play(4)
    rounds.settle(PATIENCE * NUM_CLIENTS // (NUM_CLIENTS - 5) + 1)
    for _ in range(60):
        rounds.hear(1, -0.8, -COMMON)
    assert set(rounds.judge.excluded()) == set(map(ClientId, FLIPS)), "who is far below all others stays excluded"
    for _ in range(60):
        rounds.hear(0, -0.02, -COMMON)
    assert set(rounds.judge.excluded()) == set(map(ClientId, FLIPS[1:]))
    assert ClientId(0) in rounds.directions.counted


def test_a_loaded_state_goes_on_alike() -> None:
    one, other = Rounds(), Rounds()
    one.play(2)
    other.directions.load_state_dict(one.directions.state_dict())
    other.judge.load_state_dict(one.judge.state_dict())
    other.number = one.number
    for rounds in (one, other):
        rounds.play(2)
    for key, value in one.judge.state_dict().items():
        np.testing.assert_array_equal(value, other.judge.state_dict()[key], err_msg=key)
