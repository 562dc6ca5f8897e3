"""The contracts, run on what breaks them: each promise is missed by the check that is about it."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secureafl import Model, SecureAFL, Update, Vector, Verdict
from secureafl.errors import SettingsError
from secureafl.lab.attacks import Attack, AttackEntry, View
from secureafl.lab.attacks.attack import Stateless
from secureafl.testing import check_attack, check_defense
from secureafl.types import Array, StateDict, refuse

COUNTER = itertools.count()


class Momentum:
    """A right defense: a running mean of all updates."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.mean: Vector = np.zeros(dim, np.float32)

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        self.mean = np.asarray(0.9 * self.mean + 0.1 * np.clip(update.delta, -10, 10), np.float32)
        return Verdict(True, "accepted", self.mean.copy())

    def state_dict(self) -> StateDict:
        return {"mean": self.mean.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.mean = np.array(state["mean"], np.float32)


class Trusting(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        return Verdict(True, "accepted", update.delta)


class Traced(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        self.mean = self.mean + np.float32(1.0)
        return super().step(update, model)


class Wide(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        verdict = super().step(update, model)
        direction = verdict.direction
        return verdict if direction is None else replace(verdict, direction=direction.astype(np.float64))


class Typed(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        verdict = super().step(update, model)
        return replace(verdict, evidence={"norm": np.float32(1.0)}) if verdict.accepted else verdict  # type: ignore[dict-item]


class Writing(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        verdict = super().step(update, model)
        if verdict.accepted:
            np.multiply(update.delta, 2, out=update.delta)
        return verdict


class Counting(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        verdict = super().step(update, model)
        return replace(verdict, evidence={"count": float(next(COUNTER))}) if verdict.accepted else verdict


class Forgetful(Momentum):
    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        pass


class Lent(Momentum):
    def step(self, update: Update, model: Model) -> Verdict:
        before = self.mean
        verdict = super().step(update, model)
        before[:] = self.mean
        self.mean = before
        return verdict

    def state_dict(self) -> StateDict:
        return {"mean": self.mean}


class Worded(Momentum):
    def state_dict(self) -> StateDict:
        return {**super().state_dict(), "word": np.array(["x"])}


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        (Trusting, "an update that is not-finite was answered with Verdict"),
        (Traced, "a malformed update changed the defense's state"),
        (Wide, "direction has type float64"),
        (Typed, "evidence 'norm' is a float32; make it a float"),
        (Writing, "step wrote to update.delta"),
        (Counting, "two equal runs had different verdicts"),
        (Forgetful, "restored at arrival"),
        (Lent, "return copies of arrays from state_dict"),
        (Worded, "'word' of state_dict is an array of <U1"),
    ],
)
def test_a_broken_promise_of_a_defense_is_named(defense: type[Any], message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_defense(defense)
    assert message in str(caught.value)


def test_a_defense_that_keeps_them_passes_however_it_is_given() -> None:
    check_defense(Momentum)
    check_defense(lambda dim: Momentum(dim))
    check_defense("zenopp", epsilon=0.1)
    check_defense(lambda dim: SecureAFL(dim, server_lr=0.2))
    with pytest.raises(SettingsError, match="leave them out here"):
        check_defense(lambda dim: Momentum(dim), limit=1.0)


class Reverse(Stateless):
    """A right attack."""

    def update(self, view: View) -> Vector:
        return -view.gradient


def sending(update: Callable[[View], Any]) -> AttackEntry:
    """An attack that sends this."""

    class Sender(Stateless):
        def update(self, view: View) -> Vector:
            return update(view)  # type: ignore[no-any-return]

    made: type[Attack] = Sender
    return AttackEntry(made)


def fails_when_diverged(view: View) -> Vector:
    if not np.isfinite(view.gradient).all():
        raise ZeroDivisionError
    return -view.gradient


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (sending(lambda view: view.gradient), "return a copy"),
        (sending(lambda view: view.gradient.astype(float)), "make it float32"),
        (sending(lambda view: np.full_like(view.gradient, np.inf)), "not finite"),
        (sending(lambda view: np.negative(view.gradient, out=view.gradient).copy()), "work on copies"),
        (sending(lambda view: view.gradient + np.float32(next(COUNTER))), "take randomness from view.rng"),
        (sending(fails_when_diverged), "update raised ZeroDivisionError"),
        (AttackEntry(Reverse, needs_classes=True), "did not refuse a regression"),
    ],
)
def test_a_broken_promise_of_an_attack_is_named(attack: AttackEntry, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_attack(attack)
    assert message in str(caught.value)


def test_an_attack_that_keeps_them_passes_however_it_is_given() -> None:
    check_attack(Reverse)
    check_attack(AttackEntry(Reverse))
    check_attack("sign_flip", scale=0.5)


def test_the_contract_needs_no_test_framework_and_no_extra() -> None:
    extras = ("pytest", "hypothesis", "PIL", "torch")
    code = f"import secureafl.testing, sys; print([name for name in {extras} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
