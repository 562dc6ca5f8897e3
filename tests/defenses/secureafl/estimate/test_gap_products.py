import numpy as np
import pytest
from tests.support import Federation, Quadratic, update

from secureafl import Model, SecureAFL, SecureAFLSettings
from secureafl.defenses.secureafl import HessianProduct
from secureafl.defenses.secureafl.estimate.gap_products import MAX_DRIFT, GapProducts
from secureafl.history import History, Precision


def gaps_of(secure: SecureAFL) -> GapProducts:
    assert isinstance(secure.stages.estimate, HessianProduct)
    return secure.stages.estimate.gaps


def history_of(secure: SecureAFL) -> History:
    assert isinstance(secure.history, History)
    return secure.history


def run(num_arrivals: int, **settings: object) -> tuple[SecureAFL, Federation]:
    problem = Quadratic(num_clients=20, dim=150)
    secure = SecureAFL(150, SecureAFLSettings.paper(correction="calibrated", **settings), server_lr=0.05)
    federation = Federation(problem, secure)
    federation.run(num_arrivals)
    return secure, federation


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_carried_products_stay_those_of_the_rows_for_2000_steps(precision: Precision) -> None:
    secure, federation = run(2000, refresh_interval=10_000, history_dtype=precision)
    assert gaps_of(secure).num_exact == 1
    carried, exact = (
        gaps_of(secure).at(federation.machine.model.params),
        history_of(secure).products(federation.machine.model.params),
    )
    scale = np.sqrt(np.maximum(np.abs(exact), 1e-300).max(axis=0))
    assert np.abs(carried - exact).max() <= 1e-6 * float(scale.max() ** 2)
    assert gaps_of(secure).drift <= MAX_DRIFT[precision]


def test_products_are_exact_again_at_the_interval() -> None:
    secure, _ = run(200, refresh_interval=50)
    assert gaps_of(secure).num_exact == pytest.approx(4, abs=1)


def test_a_model_that_moved_otherwise_is_noticed_and_gives_the_same_results() -> None:
    problem, ends = Quadratic(num_clients=20, dim=150), []
    for told, num_exact in ((0.05, 1), (1.0, 299)):
        secure = SecureAFL(150, SecureAFLSettings.paper(correction="calibrated"), server_lr=told)
        rng, params = np.random.default_rng(0), np.zeros(150, np.float32)
        for version in range(300):
            here, client = Model(version, params), int(rng.integers(20))
            verdict = secure.step(update(client, here, problem.noisy_gradient(client, params, rng)), here)
            params = params if verdict.direction is None else params - np.float32(0.05) * verdict.direction
        assert gaps_of(secure).num_exact == pytest.approx(num_exact, abs=20 if told == 1.0 else 0)
        ends.append(params)
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def test_drift_is_noticed_when_a_client_arrives() -> None:
    secure, federation = run(200)
    gaps_of(secure)._products += 1.0
    federation.run(30)
    assert gaps_of(secure).num_exact == 2
    assert gaps_of(secure).drift > MAX_DRIFT["float32"]


def test_one_direction_of_a_foreign_model_does_not_disturb_the_next() -> None:
    secure, federation = run(100)
    here = federation.machine.model
    elsewhere = Model(here.version, here.params + np.float32(1))
    expected = {c: secure.estimate(c, here.params) for c in secure.history.clients}
    gaps_of(secure).at(elsewhere.params)
    exact = history_of(secure).products(here.params)
    np.testing.assert_array_equal(gaps_of(secure).at(here.params), exact)
    assert all(np.array_equal(secure.estimate(c, here.params), expected[c]) for c in expected)
