"""The default as a whole: who moves the model, how far, and that nobody's speed or names buy more."""

from pathlib import Path

import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl import ClientId, Machine, MachineSettings, SecureAFL, SecureAFLSettings, kernels
from secureafl.defenses.secureafl import RunningMean
from secureafl.errors import SettingsError
from secureafl.types import Reason


def test_the_mean_is_that_of_all_votes_at_any_time() -> None:
    problem = Quadratic(num_clients=20, dim=90)
    secure = SecureAFL(90, seed=3)
    federation = Federation(problem, secure, malicious=frozenset({0, 1}), attack=lambda g: -3 * g)
    for _ in range(12):
        federation.run(25)
        combiner = secure.stages.combine
        assert isinstance(combiner, RunningMean)
        shares = combiner.shares()
        plain = sum(share * combiner.rows.last_delta(client).astype(np.float64) for client, share in shares.items())
        np.testing.assert_allclose(combiner.mean, plain, rtol=1e-5, atol=1e-6)
        assert sum(shares.values()) == pytest.approx(1.0)


def test_it_learns_and_the_malicious_have_no_vote() -> None:
    problem = Quadratic(num_clients=20, dim=90, noise=0.1)
    secure = SecureAFL(90, seed=3)
    federation = Federation(problem, secure, malicious=frozenset({0, 1, 2}), attack=lambda g: -3 * g)
    federation.run(600)
    assert secure.excluded().keys() >= {0, 1, 2}
    assert len(secure.excluded()) <= 5


def machine(dim: int = 30, **settings: object) -> Machine:
    secure = SecureAFL(dim, SecureAFLSettings(**settings), seed=5)  # type: ignore[arg-type]
    return Machine(secure, np.zeros(dim, np.float32), MachineSettings(server_lr=0.05))


def send(server: Machine, name: str, delta: object) -> str:
    ticket = server.issue(server.enrol(name))
    return str(server.receive(ticket.number, np.asarray(delta, np.float32)).reason)


def test_a_client_that_floods_renews_its_vote_and_moves_nothing() -> None:
    server, rng = machine(), np.random.default_rng(0)
    for _ in range(20):
        for client in range(12):
            send(server, f"honest-{client}", server.model.params - 1.0 + 0.1 * rng.normal(size=30))
    before = server.model
    reasons = [send(server, "honest-0", server.model.params - 1.0 + 0.1 * rng.normal(size=30)) for _ in range(200)]
    assert reasons.count(Reason.OVER_BUDGET) > 180
    moved = np.linalg.norm(server.model.params - before.params)
    assert moved < 12 * 0.05 * np.sqrt(30), "a dozen steps at most"


def test_a_loud_newcomer_is_limited_to_a_fifth_of_a_vote() -> None:
    server, rng = machine(), np.random.default_rng(0)
    for _ in range(8):
        for client in range(12):
            send(server, f"honest-{client}", -1.0 + 0.1 * rng.normal(size=30))
    before = server.model.params.copy()
    assert send(server, "stranger", np.full(30, 1e6)) == Reason.FIRST_CONTACT
    moved = float(np.linalg.norm(server.model.params - before))
    assert moved < 0.05 * np.sqrt(30) * 1.1, "a step as long as any other"
    shares = server.defense.influence(server.model.params)  # type: ignore[attr-defined]
    assert shares[12] == pytest.approx(0.2 / 12.2, rel=1e-3)


def test_operator_weights_are_by_name_and_survive_a_restart() -> None:
    servers = [machine(weights="site-1=0.5, site-2=0", alike=None) for _ in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(8):
        for client in range(12):
            send(servers[0], f"site-{client}", -1.0 + 0.1 * rng.normal(size=30))
    servers[1].load_state_dict(servers[0].state_dict())
    delta = -1.0 + 0.1 * rng.normal(size=30)
    for server in servers:
        send(server, "site-1", delta)
        shares = server.defense.influence(server.model.params)  # type: ignore[attr-defined]
        assert (shares[1], shares[2]) == (pytest.approx(0.5 / 10.5), 0.0)
    np.testing.assert_array_equal(servers[0].model.params, servers[1].model.params)


def test_forgotten_newcomers_leave_nothing_in_the_sum() -> None:
    server, rng = machine(max_newcomers=20), np.random.default_rng(0)
    for number in range(500):
        send(server, f"name-{number}", rng.normal(size=30))
    combiner = server.defense.stages.combine  # type: ignore[attr-defined]
    assert len(combiner.rows) == 20
    anew = np.zeros(30, np.int64)
    for client, weight in combiner._weights.items():
        kernels.reweigh(anew, combiner.rows.last_delta(client), 0, weight, combiner.unit)
    np.testing.assert_array_equal(anew, combiner._votes)


def test_a_client_whose_updates_are_always_long_is_not_abrupt() -> None:
    secure = SecureAFL(30, seed=1)
    rng, params = np.random.default_rng(2), np.zeros(30, np.float32)
    found = []
    for number in range(400):
        client, base = number % 16, model(number, params)
        delta = (params - 1.0 + 0.1 * rng.normal(size=30)) * (6.0 if client == 3 else 1.0)
        verdict = secure.step(update(client, base, delta), base)
        found.append((client, str(verdict.reason)))
        if verdict.direction is not None:
            params = params - np.float32(0.02) * verdict.direction
    assert {reason for client, reason in found if client == 3} <= {"first-contact", "accepted", "over-budget"}
    assert ClientId(3) not in secure.excluded()


def test_the_same_model_is_at_distance_0() -> None:
    secure, rng = SecureAFL(700, SecureAFLSettings(gap_damping=0.0), seed=1), np.random.default_rng(2)
    base = model(0, rng.normal(size=700))
    delta = rng.normal(size=700)
    assert secure.step(update(0, base, delta), base).accepted
    again = secure.step(update(0, base, delta), base)
    assert (again.accepted, again.evidence["lipschitz_factor"]) == (True, 0.0)
    other = secure.step(update(0, base, 1.01 * delta), base)
    assert (other.accepted, other.reason) == (False, Reason.CHANGED_ON_SAME_MODEL)


def test_rows_on_disk_are_not_promised_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not history_path"):
        SecureAFL(30, history_path=tmp_path)


def test_names_that_are_used_once_do_not_say_what_is_usual() -> None:
    """Hundreds of them, all unlike, would make a group of honest clients, who are alike, and set every limit."""
    problem, rng = Quadratic(num_clients=20, dim=60, noise=0.3), np.random.default_rng(1)
    secure = SecureAFL(60, seed=3)
    server = Machine(secure, np.zeros(60, np.float32), MachineSettings(server_lr=0.01))
    for number in range(2500):
        if number >= 200 and rng.random() < 0.2:
            push = problem.optimum - server.model.params + 20 * rng.normal(size=60)
            send(server, f"once-{number}", push)
        else:
            client = int(rng.integers(20))
            send(server, f"client-{client}", problem.noisy_gradient(client, server.model.params, rng))
    honest = [server.enrol(f"client-{client}") for client in range(20)]
    assert min(secure.stages.weight(client) for client in honest) > 0.5
    assert secure.limits(honest[0])[0] < 10.0, "names that were used once are about 150 long"
    assert np.linalg.norm(server.model.params - problem.optimum) < 0.5 * np.linalg.norm(problem.optimum)
