"""One who comes first, alone, must not decide where a run begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from secureafl.defenses import SecureAFL
from secureafl.defenses.secureafl import FirstSteps, Pipeline, SecureAFLSettings, median
from secureafl.errors import SettingsError
from secureafl.server import Machine, MachineSettings
from secureafl.testing import check_defense
from secureafl.types import Vector, Verdict

DIM = 40


def machine(server_lr: float = 0.5, **settings: object) -> Machine:
    defense = SecureAFL(DIM, SecureAFLSettings(**settings))  # type: ignore[arg-type]
    return Machine(defense, np.zeros(DIM, np.float32), MachineSettings(server_lr=server_lr))


def send(server: Machine, name: str, delta: Vector) -> Verdict:
    return server.receive(server.issue(server.enrol(name)).number, delta)


def along(*lengths: float) -> Vector:
    """An update with these first coordinates."""
    return np.array([*lengths, *[0.0] * (DIM - len(lengths))], np.float32)


@pytest.mark.parametrize("server_lr", [0.01, 0.5, 1.0])
def test_a_liar_who_comes_first_is_taken_back_at_the_third_client(server_lr: float) -> None:
    server = machine(server_lr)
    send(server, "liar", along(-30.0))
    send(server, "liar", along(-30.0))
    send(server, "a", along(1.0, 0.1))
    assert server.model.params[0] > 10.0 * server_lr
    verdict = send(server, "b", along(1.0, 0.0, 0.1))
    assert verdict.evidence["taken_back"] > 10.0
    expected = -server_lr * (along(1.0, 0.1) + along(1.0, 0.0, 0.1)) / 2.0  # one step along those who remain
    np.testing.assert_allclose(server.model.params, expected, atol=1e-5)


def test_the_liars_next_update_is_judged_like_that_of_anyone_known() -> None:
    server = machine()
    for name, delta in (("liar", along(-30.0)), ("a", along(1.0, 0.1)), ("b", along(1.0, 0.0, 0.1))):
        send(server, name, delta)
    assert send(server, "liar", along(-30.0)).reason == "too-long"
    assert send(server, "liar", along(1.0, 0.0, 0.0, 0.1)).accepted


def test_without_one_who_is_too_long_nothing_is_taken_back() -> None:
    server, twin = machine(), machine(too_long=None)
    for name, delta in (("a", along(7.0)), ("b", along(1.0)), ("c", along(1.0)), ("d", along(1.0)), ("a", along(6.0))):
        verdict = send(server, name, delta)
        send(twin, name, delta)
        assert "taken_back" not in verdict.evidence
    np.testing.assert_array_equal(server.model.params, twin.model.params)


def test_two_clients_alone_are_never_taken_back() -> None:
    server = machine()
    for _ in range(20):
        send(server, "long", along(-30.0))
        assert "taken_back" not in send(server, "short", along(1.0)).evidence


def test_a_run_interrupted_before_the_third_client_takes_back_the_same() -> None:
    server = machine()
    send(server, "liar", along(-30.0))
    send(server, "a", along(1.0, 0.1))
    other = machine()
    other.load_state_dict(server.state_dict())
    for restored in (server, other):
        assert send(restored, "b", along(1.0, 0.0, 0.1)).evidence["taken_back"] > 10.0
    np.testing.assert_array_equal(server.model.params, other.model.params)


def test_state_from_before_there_was_such_a_stage_is_taken_over() -> None:
    server = machine()
    send(server, "liar", along(-30.0))
    state = {name: array for name, array in server.state_dict().items() if "beginning" not in name}
    other = machine()
    other.load_state_dict(state)
    send(other, "a", along(1.0, 0.1))
    assert "taken_back" not in send(other, "b", along(1.0, 0.0, 0.1)).evidence


def test_the_contract_of_defenses_holds() -> None:
    check_defense(lambda dim: SecureAFL(dim))


def test_only_a_running_mean_has_first_steps_to_take_back() -> None:
    stages = dataclasses.replace(median(DIM), beginning=FirstSteps())
    with pytest.raises(SettingsError, match="only a running mean can take its first steps back"):
        Pipeline(stages)


def test_one_who_is_too_long_as_the_third_is_shortened_and_nothing_is_taken_back() -> None:
    server = machine()
    send(server, "a", along(1.0, 0.1))
    send(server, "b", along(1.0, 0.0, 0.1))
    assert "taken_back" not in send(server, "liar", along(-30.0)).evidence
    assert "taken_back" not in send(server, "c", along(1.0, 0.0, 0.0, 0.1)).evidence
