from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secureafl import Layout, Machine, MachineSettings, Reason, SecureAFL, Vector
from secureafl.server.admission import admit
from secureafl.types import ClientReturns, NamedArrays

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


COUNTED = Layout.of({"w": np.zeros(2, np.float32), "steps": np.array(5), "b": np.zeros(1, np.float32)})


@pytest.mark.parametrize("client_returns", ["weights", "delta", "gradient"])
@pytest.mark.parametrize("steps", [None, np.array(5), np.array(10**9), np.array(np.nan), np.array(True)])
def test_integer_arrays_may_be_absent_and_are_not_used(
    client_returns: ClientReturns, steps: npt.NDArray[Any] | None
) -> None:
    sent = ANSWER if steps is None else {**ANSWER, "steps": steps}
    np.testing.assert_array_equal(
        admit(sent, COUNTED, BASE, client_returns), admit(ANSWER, LAYOUT, BASE, client_returns)
    )


def test_integer_arrays_of_another_name_or_shape_are_refused() -> None:
    assert admit({**ANSWER, "step": np.array(5)}, COUNTED, BASE, "weights") is Reason.WRONG_NAMES
    assert admit({**ANSWER, "steps": np.zeros(1, np.int64)}, COUNTED, BASE, "weights") is Reason.WRONG_SHAPE
    assert admit({"w": ANSWER["w"], "steps": np.array(5)}, COUNTED, BASE, "weights") is Reason.WRONG_NAMES


def flips(num_counters: int) -> tuple[list[tuple[bool, bool]], Vector]:
    """(malicious, accepted) for every arrival where 4 of 20 clients send their step times -10, and the last model.

    Each client's `num_batches_tracked` grows by 100 per update, far more than any weight.
    """
    rng, num_clients, dim = np.random.default_rng(0), 20, 100
    optima = rng.normal(size=dim) + 0.3 * rng.normal(size=(num_clients, dim))
    counters = {f"bn{i}.num_batches_tracked": np.array(0) for i in range(num_counters)}
    first = {"w": np.zeros(dim, np.float32), **counters}
    layout = Layout.of(first)
    machine = Machine(SecureAFL(layout.dim), layout.flatten(first), MachineSettings(server_lr=1.0))
    seen = []
    for _ in range(400):
        client = int(rng.integers(num_clients))
        ticket = machine.issue(machine.enrol(f"client-{client}"))
        base = machine.model_of(ticket).params
        given = layout.unflatten(base)
        step = 0.2 * (optima[client] - given["w"]) + 0.05 * rng.normal(size=dim)
        malicious = client < 4
        sent = {name: array + 100 for name, array in given.items()}
        sent["w"] = given["w"] + (-10 * step if malicious else step)
        verdict = machine.receive(ticket.number, _admitted(sent, layout, base))
        seen.append((malicious, verdict.accepted))
    return seen, machine.model.params


def _admitted(sent: NamedArrays, layout: Layout, base: Vector) -> Vector:
    update = admit(sent, layout, base, "weights")
    assert isinstance(update, np.ndarray)
    return update


def test_counters_do_not_hide_an_attack() -> None:
    plain, model = flips(num_counters=0)
    counted, model_beside_counters = flips(num_counters=20)
    assert counted == plain
    np.testing.assert_array_equal(model_beside_counters, model)
    passed = [accepted for malicious, accepted in plain if malicious]
    assert sum(passed) < 0.1 * len(passed)
