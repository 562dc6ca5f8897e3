import numpy as np
import pytest
from tests.contract.literal_secureafl import LiteralSecureAFL
from tests.support import Quadratic

from secureafl import ClientId, Model, SecureAFL, SecureAFLSettings, Update
from secureafl.defenses import PAPER
from secureafl.defenses.secureafl import HessianProduct
from secureafl.types import Reason


@pytest.mark.parametrize("num_clients", [7, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"correction": "raw"},
        dict(PAPER),
        {**PAPER, "correction": "none"},
        {"opposition": 1.0, "agreement_decay": 0.5},
        {"lead": 1.0, "max_change": 0.5, "window": 40},
        {"alike": None},
        {"alike": 0.1, "agreement_decay": 0.5},
        {"correction": "bounded"},
        {"correction": "calibrated"},
        {**PAPER, "history": "all"},
        {"bucket": 3},
        {"bucket": 4, "correction": "bounded"},
        {"aggregate": "trimmed_mean"},
        {"aggregate": "mean"},
        {"clip_norm": 1.0},
        {"correction": "bounded", "memory": 1},
        {**PAPER, "percentile": 0.5},
    ],
    ids=lambda changes: ("paper-" if PAPER.items() <= changes.items() else "") + "-".join(map(str, changes)),
)
def test_fast_path_agrees_with_the_literal_reference_over_500_arrivals(
    num_clients: int, changes: dict[str, object]
) -> None:
    settings = SecureAFLSettings(**{"aggregate": "median", **changes})  # type: ignore[arg-type]
    problem = Quadratic(num_clients=num_clients, dim=200, noise=0.05, seed=num_clients)
    fast, literal = SecureAFL(200, settings, server_lr=0.1), LiteralSecureAFL(settings)
    rng = np.random.default_rng(1)
    models = [Model(0, np.zeros(200, np.float32))]
    outcomes = set()
    for arrival in range(500):
        client = int(rng.integers(min(num_clients, 1 + arrival // 4)))  # clients join one after the other
        base = models[int(rng.integers(max(0, arrival - 5), arrival + 1))]
        delta = problem.noisy_gradient(client, base.params, rng)
        if client == 0:
            delta = -3 * delta
        if arrival % 50 == 7:
            attempt = np.where(rng.random(200) < 0.1, np.nan, delta).astype(np.float32)
            assert fast.step(Update(ClientId(client), base, attempt), models[-1]).reason == Reason.NOT_FINITE
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
    if isinstance(fast.stages.estimate, HessianProduct):
        assert (
            fast.stages.estimate.gaps.num_exact == 1
        )  # one pass per step: everything was carried along from the first
        assert fast.stages.estimate.gaps.drift <= 1e-6
