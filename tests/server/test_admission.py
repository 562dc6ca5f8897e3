import numpy as np
import pytest

from secureafl import Layout, Reason
from secureafl.server.admission import ClientReturns, admit

LAYOUT = Layout.of({"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)})
BASE = np.array([1, 2, 3], np.float32)
ANSWER = {"b": np.array([30.0]), "w": np.array([10.0, 20.0])}


@pytest.mark.parametrize(
    ("client_returns", "expected"), [("weights", [-9, -18, -27]), ("delta", [10, 20, 30]), ("gradient", [10, 20, 30])]
)
def test_answers_become_updates_that_point_uphill(client_returns: ClientReturns, expected: list[float]) -> None:
    update = admit(ANSWER, LAYOUT, BASE, client_returns)
    assert isinstance(update, np.ndarray)
    assert update.dtype == np.float32
    assert update.tolist() == expected


def test_misfits_are_named() -> None:
    assert admit({"w": ANSWER["w"]}, LAYOUT, BASE, "weights") is Reason.WRONG_NAMES
    assert admit({**ANSWER, "x": np.zeros(1)}, LAYOUT, BASE, "weights") is Reason.WRONG_NAMES
    assert admit({**ANSWER, "w": np.zeros((2, 1))}, LAYOUT, BASE, "weights") is Reason.WRONG_SHAPE
    assert admit({**ANSWER, "w": np.zeros(2, complex)}, LAYOUT, BASE, "weights") is Reason.WRONG_DTYPE


def test_values_beyond_float32_become_infinite_for_the_defense_to_refuse() -> None:
    update = admit({**ANSWER, "b": np.array([1e300])}, LAYOUT, BASE, "delta")
    assert isinstance(update, np.ndarray)
    assert np.isinf(update[2])


def test_denormal_numbers_become_zero() -> None:
    update = admit({"w": np.array([1e-40, -1e-39]), "b": np.array([2e-38])}, LAYOUT, BASE, "delta")
    assert isinstance(update, np.ndarray)
    assert update.tolist() == [0.0, 0.0, np.float32(2e-38)]
