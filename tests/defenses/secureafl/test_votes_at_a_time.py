"""Only so many clients vote at a time. Else the model swings: votes get older, the more clients there are."""

import numpy as np
import pytest

from secureafl import Machine, MachineSettings, Reason
from secureafl.defenses.secureafl import SecureAFL, SecureAFLSettings
from secureafl.types import ClientId

DIM, NUM_CLIENTS, RATE = 20, 4000, 0.02


def distances(max_votes: int | None) -> list[float]:
    """How far the model is from the optimum, in the course of 12,000 honest updates of clients that come in turn."""
    rng = np.random.default_rng(0)
    defense = SecureAFL(DIM, SecureAFLSettings(max_votes=max_votes, full_vote_after=1), server_lr=RATE, seed=1)
    machine = Machine(defense, np.ones(DIM, np.float32), MachineSettings(server_lr=RATE))
    clients = [machine.enrol(f"client-{number}") for number in range(NUM_CLIENTS)]
    found = []
    for number in range(3 * NUM_CLIENTS):
        ticket = machine.issue(clients[number % NUM_CLIENTS])
        noise = rng.normal(size=DIM).astype(np.float32)
        machine.receive(ticket.number, machine.model_of(ticket).params + np.float32(0.5) * noise)
        found.append(float(np.linalg.norm(machine.model.params)))
    return found


def test_a_model_of_many_clients_stays_where_it_should_be() -> None:
    some, all_of_them = (float(np.mean(distances(votes)[-NUM_CLIENTS:])) for votes in (300, None))
    assert some < 0.4, "about as far as the noise of the updates carries it"
    assert all_of_them > 1.5 * some, "with everyone's vote it swings"


def shares(defense: SecureAFL) -> dict[ClientId, float]:
    found = defense.influence(np.zeros(DIM, np.float32))
    assert found is not None
    return {client: share for client, share in found.items() if share}


def test_so_many_vote_and_all_are_remembered() -> None:
    defense = SecureAFL(DIM, SecureAFLSettings(max_votes=10, alike=None), seed=1)
    machine = Machine(defense, np.zeros(DIM, np.float32), MachineSettings(server_lr=RATE))
    clients = [machine.enrol(f"client-{number}") for number in range(30)]
    for number in range(300):
        verdict = machine.receive(machine.issue(clients[number % 30]).number, np.ones(DIM, np.float32))
    assert verdict.reason == Reason.ACCEPTED
    assert clients[-1] in shares(defense)
    assert set(shares(defense)) != set(clients[20:]), "by lot, not in turn"
    assert list(shares(defense).values()) == pytest.approx([0.1] * 10)
    assert len(defense.history) == 30


def test_one_who_sends_more_often_than_others_is_not_heard_more_often() -> None:
    defense = SecureAFL(DIM, SecureAFLSettings(max_votes=10, alike=None), seed=1)
    machine = Machine(defense, np.zeros(DIM, np.float32), MachineSettings(server_lr=RATE))
    clients = [machine.enrol(f"client-{number}") for number in range(50)]
    reasons, votes = [], []
    for number in range(1500):
        slow, fast = clients[number % 40], clients[40 + number % 10]
        for client in (slow, fast, fast, fast):
            verdict = machine.receive(machine.issue(client).number, np.ones(DIM, np.float32))
            reasons.append(str(verdict.reason))
        if number > 500:
            votes.append(sum(share for client, share in shares(defense).items() if client in clients[40:]))
    assert Reason.OVER_BUDGET in reasons
    assert np.mean(votes) < 0.45, "they send three quarters of all updates, and are a fifth of all clients"
