import numpy as np
import pytest
from tests.support import Federation, Quadratic

from secureafl import Model, SecureAFL, SecureAFLSettings
from secureafl.gaps import MAX_DRIFT
from secureafl.storage import Precision


def run(num_arrivals: int, *, told: float = 0.05, **settings: object) -> tuple[SecureAFL, Federation]:
    problem = Quadratic(num_clients=20, dim=150)
    secure = SecureAFL(150, SecureAFLSettings.paper(correction="calibrated", **settings), server_lr=told)
    federation = Federation(problem, secure)
    federation.run(num_arrivals)
    return secure, federation


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_carried_products_stay_those_of_the_rows_for_2000_steps(precision: Precision) -> None:
    secure, federation = run(2000, refresh_interval=10_000, history_dtype=precision)
    assert secure.gaps.num_exact == 1
    carried, exact = (
        secure.gaps.at(federation.machine.model.params),
        secure.history.products(federation.machine.model.params),
    )
    scale = np.sqrt(np.maximum(np.abs(exact), 1e-300).max(axis=0))
    assert np.abs(carried - exact).max() <= 1e-6 * float(scale.max() ** 2)
    assert secure.gaps.drift <= MAX_DRIFT[precision]


def test_products_are_exact_again_at_the_interval() -> None:
    secure, _ = run(200, refresh_interval=50)
    assert secure.gaps.num_exact == pytest.approx(4, abs=1)


def test_a_model_that_moved_otherwise_is_noticed_and_gives_the_same_results() -> None:
    (told, first), (untold, second) = run(300), run(300, told=1.0)
    assert told.gaps.num_exact == 1
    assert untold.gaps.num_exact > 250
    np.testing.assert_allclose(first.machine.model.params, second.machine.model.params, rtol=1e-4, atol=1e-5)


def test_drift_is_noticed_when_a_client_arrives() -> None:
    secure, federation = run(200)
    secure.gaps._products += 1.0
    federation.run(30)
    assert secure.gaps.num_exact == 2
    assert secure.gaps.drift > MAX_DRIFT["float32"]


def test_one_direction_of_a_foreign_model_does_not_disturb_the_next() -> None:
    secure, federation = run(100)
    here = federation.machine.model
    elsewhere = Model(here.version, here.params + np.float32(1))
    expected = {c: secure.estimate(c, here.params) for c in secure.history.clients}
    secure.gaps.at(elsewhere.params)
    exact = secure.history.products(here.params)
    np.testing.assert_array_equal(secure.gaps.at(here.params), exact)
    assert all(np.array_equal(secure.estimate(c, here.params), expected[c]) for c in expected)
