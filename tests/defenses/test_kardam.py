import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl.defenses import Kardam, KardamSettings
from secureafl.types import Reason


def test_coefficients_of_affine_gradients_are_at_most_the_largest_eigenvalue() -> None:
    problem = Quadratic(noise=0.0)
    kardam = Kardam(problem.dim)
    Federation(problem, kardam).run(300)
    assert len(kardam.coefficients) == problem.num_clients
    for client, coefficient in kardam.coefficients.items():
        assert coefficient <= problem.curvatures[client].max() * (1 + 1e-3)


def test_a_huge_update_is_rejected_once_the_table_is_full() -> None:
    problem = Quadratic(num_clients=10)
    kardam = Kardam(problem.dim)
    federation = Federation(problem, kardam)
    while len(kardam.coefficients) < problem.num_clients:
        federation.arrive()
    now = federation.machine.model
    verdict = kardam.step(update(4, now, np.full(problem.dim, 1e6)), now)
    assert not verdict.accepted
    assert verdict.reason == Reason.CHANGED_TOO_ABRUPTLY


@pytest.mark.parametrize(("dampening", "factor"), [("inverse", 1 / 4), ("exponential", np.exp(-0.6)), ("none", 1.0)])
def test_steps_are_damped_by_age_and_not_at_age_zero(dampening: str, factor: float) -> None:
    settings = KardamSettings(dampening=dampening)  # type: ignore[arg-type]
    fresh = Kardam(2, settings).step(update(0, model(3, [0, 0]), [2, 4]), model(3, [0, 0]))
    stale = Kardam(2, settings).step(update(0, model(0, [0, 0]), [2, 4]), model(3, [0, 0]))
    assert fresh.direction is not None
    assert stale.direction is not None
    assert fresh.direction.tolist() == [2, 4]
    np.testing.assert_allclose(stale.direction, [2 * factor, 4 * factor], rtol=1e-6)


def test_no_client_is_accepted_twice_within_2f_plus_1_accepted_updates() -> None:
    problem = Quadratic(num_clients=20)
    arrivals = Federation(problem, Kardam(problem.dim)).run(600)
    f = 4  # floor(0.2 * 20)
    accepted = [client for client, verdict in arrivals if verdict.accepted][60:]
    assert len(accepted) > 100
    for start in range(len(accepted) - 2 * f):
        window = accepted[start : start + 2 * f + 1]
        assert len(set(window)) == len(window)
    assert any(verdict.reason == Reason.TOO_FREQUENT for _, verdict in arrivals)


def test_an_empty_table_accepts() -> None:
    verdict = Kardam(2).step(update(0, model(0, [0, 0]), [1e9, 0]), model(0, [0, 0]))
    assert verdict.accepted


def test_on_an_unchanged_model_the_old_coefficient_stands() -> None:
    kardam = Kardam(1, KardamSettings(frequency_filter=False))
    for w, g in [(0.0, 0.0), (1.0, 2.0), (1.0, 50.0)]:
        kardam.step(update(0, model(0, [w]), [g]), model(0, [w]))
    assert kardam.coefficients == {0: 2.0}


def test_candidate_against_the_last_accepted_update_of_anyone() -> None:
    kardam = Kardam(1, KardamSettings(candidate="last_accepted", malicious_fraction=0.0))
    kardam.step(update(0, model(0, [0]), [1]), model(0, [0]))
    kardam.step(update(1, model(1, [2]), [2]), model(1, [2]))
    kardam.step(update(0, model(2, [4]), [2]), model(2, [4]))  # K_0 = |2 - 1| / |4 - 0|
    verdict = kardam.step(update(1, model(3, [5]), [8]), model(3, [5]))  # K_1 = 6 / 3
    assert verdict.evidence["lipschitz_factor"] == 6.0  # |8 - 2| / |5 - 4|
    assert verdict.evidence["threshold"] == 2.0
    assert not verdict.accepted


def test_patience_accepts_after_so_many_rejections() -> None:
    problem = Quadratic(num_clients=5)
    kardam = Kardam(problem.dim, KardamSettings(accept_after_rejections=2, frequency_filter=False))
    federation = Federation(problem, kardam)
    federation.run(60)
    now = federation.machine.model
    outcomes = [kardam.step(update(0, now, np.full(problem.dim, 10.0**p)), now).accepted for p in (6, 6, 6)]
    assert outcomes.count(True) <= 1
    assert outcomes[-1]
