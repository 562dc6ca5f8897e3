"""What holds for every defense and every variant of SecureAFL, whatever it decides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import Federation, Quadratic, model

from secureafl import ClientId, Machine, Update, Vector
from secureafl.defenses import DEFENSES, PAPER, PAPER_VARIANTS, Defense
from secureafl.types import Reason

CONFIGURATIONS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in DEFENSES}
CONFIGURATIONS |= {f"secureafl-variant-{key}": ("secureafl", dict(changes)) for key, changes in PAPER_VARIANTS.items()}
CONFIGURATIONS["secureafl-median"] = ("secureafl", {"aggregate": "median"})
CONFIGURATIONS["secureafl-published"] = ("secureafl", dict(PAPER))
CONFIGURATIONS["secureafl-calibrated"] = (
    "secureafl",
    {"aggregate": "median", "correction": "calibrated", "refresh_interval": 60},
)
CONFIGURATIONS["secureafl-half-precision"] = (
    "secureafl",
    {"aggregate": "median", "history_dtype": "float16", "correction": "calibrated", "refresh_interval": 50},
)
LIARS = frozenset({0})
NUM_CLIENTS = 16
"""What compares clients with each other begins with 10 of them."""

every_configuration = pytest.mark.parametrize("configuration", CONFIGURATIONS)


def federation(configuration: str) -> Federation:
    name, changes = CONFIGURATIONS[configuration]
    if name == "asyncdefender":
        changes = {"num_first": 10, **changes}
    problem = Quadratic(num_clients=NUM_CLIENTS)
    return Federation(problem, problem.defense(name, **changes), liars=LIARS, attack=lambda g: -3 * g)


def fingerprint(machine: Machine) -> dict[str, bytes]:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in machine.state_dict().items()}


MALFORMED: list[tuple[object, Reason]] = [
    (np.full(12, np.nan, np.float32), Reason.NOT_FINITE),
    (np.array([0] * 11 + [np.inf], np.float32), Reason.NOT_FINITE),
    (np.array([-np.inf] + [0] * 11, np.float32), Reason.NOT_FINITE),
    (np.array([0] * 11 + [-2e18], np.float32), Reason.TOO_LARGE),
    (np.full(12, 3.4e38, np.float32), Reason.TOO_LARGE),
    (np.zeros(11, np.float32), Reason.WRONG_SHAPE),
    (np.zeros((12, 1), np.float32), Reason.WRONG_SHAPE),
    (np.array(3.0, np.float32), Reason.WRONG_SHAPE),
    (np.zeros(12, np.float64), Reason.WRONG_DTYPE),
    (np.zeros(12, np.int32), Reason.WRONG_DTYPE),
    (np.array(["x"] * 12), Reason.WRONG_DTYPE),
    ([0.0] * 12, Reason.WRONG_DTYPE),
    (None, Reason.WRONG_DTYPE),
]


@every_configuration
def test_malformed_updates_are_refused_as_a_verdict_and_leave_no_trace(configuration: str) -> None:
    run = federation(configuration)
    run.run(40)
    defense, now = run.machine.defense, run.machine.model
    before = {key: value.copy() for key, value in defense.state_dict().items()}
    for client in (0, 3, 77):  # a liar, a known one, a stranger
        for delta, reason in MALFORMED:
            verdict = defense.step(Update(ClientId(client), now, delta), now)  # type: ignore[arg-type]
            assert not verdict.accepted
            assert verdict.reason == reason
            assert verdict.direction is None
    after = defense.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)


@every_configuration
def test_same_arrivals_give_the_same_bits(configuration: str) -> None:
    first, second = federation(configuration), federation(configuration)
    for _ in range(150):
        (_, one), (_, other) = first.arrive(), second.arrive()
        assert (one.accepted, one.reason, one.evidence) == (other.accepted, other.reason, other.evidence)
    assert fingerprint(first.machine) == fingerprint(second.machine)


@every_configuration
def test_restore_equals_continue_from_random_cut_points_in_300_arrivals(configuration: str) -> None:
    whole = federation(configuration)
    cuts = set(np.random.default_rng(len(configuration)).integers(1, 300, size=4).tolist())
    saved = {}
    for arrival in range(300):
        if arrival in cuts:
            saved[arrival] = whole.machine.state_dict()
        whole.arrive()
    expected = fingerprint(whole.machine)
    for arrival, state in saved.items():
        resumed = federation(configuration)
        resumed.machine.load_state_dict(state)
        resumed.run(300 - arrival)
        assert fingerprint(resumed.machine) == expected, f"cut at {arrival}"


@every_configuration
def test_saved_state_is_a_copy(configuration: str) -> None:
    run = federation(configuration)
    run.run(60)
    state = run.machine.state_dict()
    kept = {key: value.copy() for key, value in state.items()}
    run.run(60)
    assert all(np.array_equal(kept[key], state[key]) for key in kept)


@every_configuration
def test_state_holds_number_arrays_only(configuration: str) -> None:
    run = federation(configuration)
    run.run(30)
    for key, value in run.machine.state_dict().items():
        assert isinstance(value, np.ndarray), key
        assert value.dtype.kind in "fiu", key


@every_configuration
def test_evidence_is_plain_numbers_and_directions_are_finite_float32(configuration: str) -> None:
    run = federation(configuration)
    for _, verdict in run.run(100):
        assert all(type(value) is float for value in verdict.evidence.values())
        assert verdict.evidence["staleness"] >= 0
        if verdict.direction is not None:
            assert verdict.direction.dtype == np.float32
            assert verdict.direction.shape == (12,)
            assert np.isfinite(verdict.direction).all()


@every_configuration
def test_inputs_are_not_written_to(configuration: str) -> None:
    run = federation(configuration)
    run.run(50)
    now = model(run.machine.model.version, run.machine.model.params.copy())
    delta = run.problem.gradient(2, now.params)
    kept_delta, kept_params = delta.copy(), now.params.copy()
    run.machine.defense.step(Update(ClientId(2), now, delta), now)
    np.testing.assert_array_equal(delta, kept_delta)
    np.testing.assert_array_equal(now.params, kept_params)


@every_configuration
def test_each_implements_the_protocol(configuration: str) -> None:
    assert isinstance(federation(configuration).machine.defense, Defense)


extreme = st.sampled_from([0.0, -0.0, 1e-45, 1.0, -1.0, 1e18, -1e18, 3.4e38])


@every_configuration
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(extreme, min_size=4, max_size=4)), max_size=25))
def test_no_finite_update_however_extreme_makes_the_model_infinite(
    configuration: str, arrivals: list[tuple[int, list[float]]]
) -> None:
    name, changes = CONFIGURATIONS[configuration]
    problem = Quadratic(num_clients=5, dim=4)
    machine = Machine(problem.defense(name, 1.0, **changes), np.zeros(4, np.float32))
    for k in range(5):
        machine.enrol(str(k))
    for client, values in arrivals:
        delta: Vector = np.array(values, np.float32)
        machine.receive(machine.issue(ClientId(client)).number, delta)
        assert np.isfinite(machine.model.params).all()
