import numpy as np
import pytest
from tests.contract.literal_secureafl import LiteralSecureAFL
from tests.support import Quadratic

from secureafl import ClientId, Model, SecureAFL, SecureAFLSettings, Update


@pytest.mark.parametrize("num_clients", [7, 50])
@pytest.mark.parametrize(
    "changes",
    [
        {"correction": "none"},
        {"correction": "raw"},
        {"correction": "bounded"},
        {"correction": "calibrated"},
        {"history": "all"},
        {"aggregate": "trimmed_mean"},
        {"aggregate": "mean"},
        {"memory": 1, "clip_norm": 1.0},
        {"percentile": 0.5},
    ],
    ids=lambda changes: "-".join(f"{k}={v}" for k, v in changes.items()),
)
def test_fast_path_agrees_with_the_literal_reference_over_200_arrivals(
    num_clients: int, changes: dict[str, object]
) -> None:
    settings = SecureAFLSettings(**changes)  # type: ignore[arg-type]
    problem = Quadratic(num_clients=num_clients, dim=200, noise=0.05, seed=num_clients)
    fast, literal = SecureAFL(200, settings), LiteralSecureAFL(settings)
    rng = np.random.default_rng(1)
    models = [Model(0, np.zeros(200, np.float32))]
    outcomes = set()
    for arrival in range(200):
        client = int(rng.integers(num_clients))
        base = models[int(rng.integers(max(0, arrival - 5), arrival + 1))]
        delta = problem.noisy_gradient(client, base.params, rng)
        if client == 0:
            delta = -3 * delta
        update = Update(ClientId(client), base, delta)
        verdict = fast.step(update, models[-1])
        accepted, direction = literal.step(update, models[-1])
        outcomes.add((verdict.accepted, str(verdict.reason)))
        assert verdict.accepted == accepted
        assert (verdict.direction is None) == (direction is None)
        params = models[-1].params
        if verdict.direction is not None and direction is not None:
            error = np.linalg.norm(verdict.direction - direction) / np.linalg.norm(direction)
            assert error <= 1e-5, f"arrival {arrival}"
            params = params - np.float32(0.1) * verdict.direction
        models.append(Model(arrival + 1, params))
    assert len(outcomes) >= 3  # first contacts, acceptances and rejections were all met
