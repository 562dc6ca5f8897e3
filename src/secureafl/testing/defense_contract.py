"""What holds for every defense, whatever it decides. Each check raises an `AssertionError` that says what to mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from secureafl.defenses import Defense, DefenseEntry, defense_entry, find_defense
from secureafl.defenses.base import CountsOnRate
from secureafl.errors import SettingsError
from secureafl.history import RowSettings
from secureafl.server import Machine, MachineSettings
from secureafl.testing.promises import require, require_numbers
from secureafl.testing.quadratic import Quadratic, QuadraticFederation
from secureafl.types import ClientId, Model, Reason, StateDict, Update, Vector

Make: TypeAlias = Callable[[Quadratic, float], Defense]
"""Makes the defense for a problem and a server's learning rate."""

NUM_CLIENTS = 16
"""What compares clients with each other begins with 10 of them."""
SERVER_LR = 0.05
NUM_ARRIVALS = 300

DIM = Quadratic.dim
MALFORMED: Sequence[tuple[object, Reason]] = (
    (np.full(DIM, np.nan, np.float32), Reason.NOT_FINITE),
    (np.array([0] * (DIM - 1) + [np.inf], np.float32), Reason.NOT_FINITE),
    (np.array([-np.inf] + [0] * (DIM - 1), np.float32), Reason.NOT_FINITE),
    (np.array([0] * (DIM - 1) + [-2e18], np.float32), Reason.TOO_LARGE),
    (np.full(DIM, 3.4e38, np.float32), Reason.TOO_LARGE),
    (np.zeros(DIM - 1, np.float32), Reason.WRONG_SHAPE),
    (np.zeros((DIM, 1), np.float32), Reason.WRONG_SHAPE),
    (np.array(3.0, np.float32), Reason.WRONG_SHAPE),
    (np.zeros(DIM, np.float64), Reason.WRONG_DTYPE),
    (np.zeros(DIM, np.int32), Reason.WRONG_DTYPE),
    (np.array(["x"] * DIM), Reason.WRONG_DTYPE),
    ([0.0] * DIM, Reason.WRONG_DTYPE),
    (None, Reason.WRONG_DTYPE),
)
"""Updates that cannot be judged, and the reason to give."""
EXTREME = (0.0, -0.0, 1e-45, 1.0, -1.0, 1e18, -1e18, 3.4e38)
"""Coordinates at the edge of what an update may have, and one beyond."""
EXTREME_DIM, NUM_EXTREME_CLIENTS = 4, 5


def maker(defense: str | type[Any] | DefenseEntry | Callable[[int], Defense], settings: Mapping[str, object]) -> Make:
    """How to make this defense for any problem, with trusted data if it needs some."""
    if not isinstance(defense, str | type | DefenseEntry):
        if settings:
            raise SettingsError("a function makes its defense with settings of its own: leave them out here")
        made = defense
        return lambda problem, server_lr: made(problem.dim)
    name = defense if isinstance(defense, str) else getattr(defense, "__qualname__", "the entry")
    entry = find_defense(defense) if isinstance(defense, str) else defense_entry(name, defense)

    def make(problem: Quadratic, server_lr: float) -> Defense:
        trusted = {"reference": problem.reference, "score": problem.score}
        given = {"server_lr": server_lr, "seed": 0, "rows": RowSettings(), **trusted}
        return entry.build(name, problem.dim, settings, given)

    return make


def follows_the_protocol(make: Make) -> None:
    """It has the methods of a defense."""
    made = _federation(make).machine.defense
    require(isinstance(made, Defense), f"{type(made).__name__} needs the methods step, state_dict and load_state_dict")


def refuses_malformed_updates(make: Make) -> None:
    """An update that cannot be judged gets a verdict that says why, moves nothing and leaves no trace."""
    run = _federation(make)
    run.run(40)
    defense, now = run.machine.defense, run.machine.model
    before = _copied(defense.state_dict())
    remedy = "begin step with: if fault := update.fault(dim): return refuse(fault)"
    for client in (0, 3, 77):  # a malicious one, an honest one, a stranger
        for delta, reason in MALFORMED:
            try:
                verdict = defense.step(Update(ClientId(client), now, delta), now)  # type: ignore[arg-type]
            except Exception as error:
                raise AssertionError(f"step raised {error!r} for an update that is {reason}; {remedy}") from error
            require(
                not verdict.accepted and verdict.reason == reason and verdict.direction is None,
                f"an update that is {reason} was answered with {verdict}; {remedy}",
            )
    require(_equal(before, defense.state_dict()), f"a malformed update changed the defense's state; {remedy}")


def gives_equal_bits(make: Make) -> None:
    """Equal arrivals lead to equal verdicts and equal state: no clock, file or global generator is read."""
    first, second = _federation(make), _federation(make)
    for arrival in range(NUM_ARRIVALS // 2):
        (_, one), (_, other) = first.arrive(), second.arrive()
        require(
            (one.accepted, one.reason, one.evidence) == (other.accepted, other.reason, other.evidence),
            f"two equal runs had different verdicts on arrival {arrival}; take randomness from a seed",
        )
    require(
        _bits(first.machine.state_dict()) == _bits(second.machine.state_dict()),
        "two equal runs ended in different states; take randomness from a seed",
    )


def goes_on_after_a_restart(make: Make) -> None:
    """Restored from `state_dict` at any arrival, it ends as if it had never stopped."""
    whole = _federation(make)
    cuts = set(np.random.default_rng(0).integers(1, NUM_ARRIVALS, size=4).tolist())
    saved: dict[int, StateDict] = {}
    for arrival in range(NUM_ARRIVALS):
        if arrival in cuts:
            saved[arrival] = whole.machine.state_dict()
        whole.arrive()
    expected = _bits(whole.machine.state_dict())
    for arrival, state in saved.items():
        resumed = _federation(make)
        resumed.machine.load_state_dict(state)
        resumed.run(NUM_ARRIVALS - arrival)
        require(
            _bits(resumed.machine.state_dict()) == expected,
            f"restored at arrival {arrival}, it went on otherwise; put all that step remembers into state_dict",
        )


def saves_a_copy(make: Make) -> None:
    """What `state_dict` returned does not change any more."""
    run = _federation(make)
    run.run(60)
    state = run.machine.state_dict()
    kept = _copied(state)
    run.run(60)
    require(_equal(kept, state), "later arrivals changed a saved state; return copies of arrays from state_dict")


def saves_numbers_only(make: Make) -> None:
    """State is arrays of numbers, so that it can be stored without pickle."""
    run = _federation(make)
    run.run(30)
    require_numbers(run.machine.defense.state_dict())


def gives_plain_verdicts(make: Make) -> None:
    """Evidence is plain floats, and what the server steps along is a finite float32 vector of the model's length."""
    for _, verdict in _federation(make).run(100):
        for name, value in verdict.evidence.items():
            require(type(value) is float, f"evidence {name!r} is a {type(value).__name__}; make it a float")
        if (direction := verdict.direction) is not None:
            require(
                direction.dtype == np.float32 and direction.shape == (DIM,),
                f"direction has type {direction.dtype} and shape {direction.shape}; make it float32 and ({DIM},)",
            )
            require(bool(np.isfinite(direction).all()), "direction is not finite")


def leaves_inputs_alone(make: Make) -> None:
    """The update and the model belong to others: `step` does not write to them."""
    run = _federation(make)
    run.run(50)
    now = Model(run.machine.model.version, run.machine.model.params.copy())
    delta = run.problem.gradient(2, now.params)
    kept_delta, kept_params = delta.copy(), now.params.copy()
    run.machine.defense.step(Update(ClientId(2), now, delta), now)
    require(np.array_equal(delta, kept_delta), "step wrote to update.delta; work on a copy")
    require(np.array_equal(now.params, kept_params), "step wrote to model.params; work on a copy")


def keeps_the_model_finite(make: Make) -> None:
    """Whatever finite numbers clients send, the model stays finite."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        senders = rng.integers(NUM_EXTREME_CLIENTS, size=25).tolist()
        stays_finite(make, [(sender, rng.choice(EXTREME, EXTREME_DIM).tolist()) for sender in senders])


def stays_finite(make: Make, arrivals: Sequence[tuple[int, Sequence[float]]]) -> None:
    """The same for these clients and updates."""
    problem = Quadratic(num_clients=NUM_EXTREME_CLIENTS, dim=EXTREME_DIM)
    machine = _machine(make, problem, 1.0)
    for number in range(NUM_EXTREME_CLIENTS):
        machine.enrol(str(number))
    for client, values in arrivals:
        delta: Vector = np.array(values, np.float32)
        machine.receive(machine.issue(ClientId(client)).number, delta)
        require(
            bool(np.isfinite(machine.model.params).all()),
            f"an update of {list(values)} made the model infinite; limit the length of a step",
        )


CHECKS: Sequence[Callable[[Make], None]] = (
    follows_the_protocol,
    refuses_malformed_updates,
    gives_plain_verdicts,
    leaves_inputs_alone,
    gives_equal_bits,
    saves_numbers_only,
    saves_a_copy,
    goes_on_after_a_restart,
    keeps_the_model_finite,
)
"""The whole contract, what is simplest to mend first."""


def _federation(make: Make) -> QuadraticFederation:
    """Sixteen clients, of whom one sends three times the reverse of its gradient."""
    problem = Quadratic(num_clients=NUM_CLIENTS)
    defense = make(problem, SERVER_LR)
    return QuadraticFederation(
        problem,
        defense,
        server_lr=_rate(defense, SERVER_LR),
        malicious=frozenset({0}),
        attack=lambda gradient: np.asarray(-3 * gradient, np.float32),
    )


def _machine(make: Make, problem: Quadratic, server_lr: float) -> Machine:
    defense = make(problem, server_lr)
    settings = MachineSettings(server_lr=_rate(defense, server_lr))
    return Machine(defense, np.zeros(problem.dim, np.float32), settings)


def _rate(defense: Defense, usual: float) -> float:
    """The learning rate that the defense counts on, if it counts on one."""
    stated = defense.server_lr if isinstance(defense, CountsOnRate) else None
    return usual if stated is None else stated


def _bits(state: Mapping[str, Any]) -> dict[str, bytes]:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in state.items()}


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: np.copy(value) for key, value in state.items()}


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
