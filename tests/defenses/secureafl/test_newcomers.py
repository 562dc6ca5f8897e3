import pytest

from secureafl.defenses.secureafl import Arrival, Newcomers
from secureafl.types import ClientId


def hear(newcomers: Newcomers, client: int, times: int = 1, accepted: bool = True) -> None:
    for _ in range(times):
        newcomers.hear(Arrival(ClientId(client), 0, True, 1.0), accepted=accepted, remembered=accepted)


def weight(newcomers: Newcomers, client: int) -> float:
    return newcomers.weight(ClientId(client))


def test_a_vote_grows_with_accepted_updates_and_not_with_rejected_ones() -> None:
    newcomers, found = Newcomers(full_after=4), []
    for accepted in (True, False, True, True, True, False):
        hear(newcomers, 0, accepted=accepted)
        found.append(weight(newcomers, 0))
    assert found == [0.25, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert weight(newcomers, 1) == 0.0


def test_all_newcomers_together_stay_below_their_share() -> None:
    newcomers = Newcomers(full_after=5, share=0.2)
    for client in range(20):
        hear(newcomers, client, 5)
    for client in range(100, 400):
        hear(newcomers, client, 4)
    together = sum(weight(newcomers, client) for client in range(100, 400))
    assert together == pytest.approx(0.25 * 20, rel=1e-3)
    hear(newcomers, 399)
    assert weight(newcomers, 399) == 1.0, "who had no room for its vote has it after as many accepted updates"


def test_before_there_are_others_nobody_waits() -> None:
    newcomers = Newcomers(full_after=5, share=0.2)
    for client in range(50):
        hear(newcomers, client)
    assert all(weight(newcomers, client) == pytest.approx(0.2, abs=1e-5) for client in range(50))


def test_of_too_many_the_one_heard_least_recently_is_named_and_keeps_its_count() -> None:
    newcomers = Newcomers(full_after=3, most=2)
    for client in (0, 1, 0):
        hear(newcomers, client)
    assert newcomers.one_too_many() is None
    hear(newcomers, 2)
    assert newcomers.one_too_many() == 1
    newcomers.forget(ClientId(1))
    assert (newcomers.one_too_many(), weight(newcomers, 1)) == (None, 0.0)
    hear(newcomers, 1, 2)
    assert weight(newcomers, 1) == 1.0


def test_a_loaded_state_goes_on_alike() -> None:
    one, other = Newcomers(most=30), Newcomers(most=30)
    for client in range(40):
        hear(one, client, 1 + client % 6)
    other.load_state_dict(one.state_dict())
    for stage in (one, other):
        hear(stage, 3)
        hear(stage, 77, 2)
    assert [weight(one, client) for client in range(80)] == [weight(other, client) for client in range(80)]
    assert one.one_too_many() == other.one_too_many()
