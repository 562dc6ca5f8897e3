import numpy as np

from secureafl import Reason
from secureafl.defenses.secureafl import SecureAFL, SecureAFLSettings
from secureafl.types import ClientId, Model, Update, Verdict

DIM = 64
NUM_CLIENTS = 40


def send(defense: SecureAFL, client: int, version: int, scale: float = 1.0) -> Verdict:
    rng = np.random.default_rng([client, version])
    delta = scale * (np.ones(DIM) + 0.5 * rng.normal(size=DIM))
    model = Model(version, np.full(DIM, 0.01 * version, np.float32))
    return defense.step(Update(ClientId(client), model, delta.astype(np.float32)), model)


def test_rows_are_kept_of_the_clients_heard_last() -> None:
    defense = SecureAFL(DIM, SecureAFLSettings(max_seats=10), seed=3)
    for version in range(3 * NUM_CLIENTS):
        send(defense, version % NUM_CLIENTS, version)
    assert sorted(defense.history.clients) == list(range(30, 40))
    shares = defense.influence(np.zeros(DIM, np.float32))
    assert shares is not None
    assert np.isclose(sum(shares.values()), 1.0)
    send(defense, 32, 500)  # keeps its seat, as it was just heard
    for client in range(9):
        send(defense, client, 501 + client)
    assert sorted(defense.history.clients) == [*range(9), 32]


def test_the_mean_is_that_of_those_who_have_a_seat() -> None:
    defense = SecureAFL(DIM, SecureAFLSettings(max_seats=10, alike=None), seed=3)
    for version in range(6 * NUM_CLIENTS):
        verdict = send(defense, version % NUM_CLIENTS, version)
    mean = np.mean([defense.history.last_delta(client) for client in defense.history.clients], axis=0)
    assert verdict.direction is not None
    np.testing.assert_allclose(verdict.direction, mean, atol=1e-6)


def test_returning_without_a_seat_is_no_first_contact() -> None:
    defense = SecureAFL(DIM, SecureAFLSettings(max_seats=10), seed=3)
    reasons = [send(defense, version % NUM_CLIENTS, version).reason for version in range(6 * NUM_CLIENTS)]
    assert reasons[:NUM_CLIENTS] == [Reason.FIRST_CONTACT] * NUM_CLIENTS
    assert set(reasons[NUM_CLIENTS:]) == {Reason.ACCEPTED}
    back = send(defense, 0, 1000)
    assert back.evidence["vote"] == 1.0, "it has its whole vote at once"
    assert "lipschitz_factor" not in back.evidence, "there is nothing to compare its update with"
    assert send(defense, 1, 1001, scale=100.0).reason == Reason.TOO_LONG
    assert send(defense, 99, 1002, scale=100.0).reason == Reason.FIRST_CONTACT


def test_a_saved_state_goes_on_alike() -> None:
    settings = SecureAFLSettings(max_seats=10)
    one, other = SecureAFL(DIM, settings, seed=3), SecureAFL(DIM, settings, seed=3)
    for version in range(100):
        send(one, 7 * version % NUM_CLIENTS, version)
    other.load_state_dict(one.state_dict())
    for version in range(100, 160):
        first, second = (send(defense, 7 * version % NUM_CLIENTS, version) for defense in (one, other))
        assert first.reason == second.reason
        np.testing.assert_array_equal(first.direction, second.direction)


def test_with_as_many_seats_as_clients_nothing_changes() -> None:
    few, all_of_them = (SecureAFL(DIM, SecureAFLSettings(max_seats=seats), seed=3) for seats in (NUM_CLIENTS, None))
    for version in range(200):
        first, second = (send(defense, 7 * version % NUM_CLIENTS, version) for defense in (few, all_of_them))
        assert first.evidence == second.evidence
