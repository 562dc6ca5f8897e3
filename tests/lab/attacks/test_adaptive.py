from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import Quadratic

from secureafl import ClientId, Machine, MachineSettings, Model, SecureAFL, SecureAFLSettings, Update, Vector, Verdict
from secureafl.kernels import coordinate_median
from secureafl.lab.attacks import Adaptive
from secureafl.lab.attacks.adaptive import (
    Ball,
    MeanEffect,
    MedianEffect,
    Region,
    directions,
    feasible,
    ray_candidate,
    region,
    shortened,
)
from secureafl.lab.attacks.attack import View, length
from secureafl.testing.attack_views import view

LIARS = frozenset(map(ClientId, (7, 8, 9)))


def random_rows(seed: int, num: int, dim: int = 5) -> Vector:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(num, dim)) + rng.normal(size=dim)).astype(np.float32)


def attacked(num_arrivals: int, seed: int = 0, **settings: Any) -> Iterator[tuple[View, Vector, Verdict]]:
    """Drive a real server; yields what each malicious client saw, sent and was told."""
    problem = Quadratic(num_clients=10, dim=131)
    secure = SecureAFL(problem.dim, SecureAFLSettings.paper(**settings), server_lr=0.05)
    machine = Machine(secure, np.zeros(problem.dim, np.float32), MachineSettings(server_lr=0.05, keep_recent=5))
    for k in range(problem.num_clients):
        machine.enrol(f"client-{k}")
    for version in range(num_arrivals):
        rng = np.random.default_rng([seed, version])
        client = ClientId(int(rng.integers(10)))
        ticket = machine.issue(client, int(rng.integers(max(0, version - 5), version + 1)))
        base = machine.model_of(ticket)
        delta = problem.noisy_gradient(client, base.params, rng)
        if client not in LIARS:
            machine.receive(ticket.number, delta)
            continue
        seen = view(
            round=version, client=client, base=base, model=machine.model, gradient=delta, shadow=secure, malicious=LIARS
        )
        sent = Adaptive().update(seen)
        yield seen, sent, machine.receive(ticket.number, sent)


@pytest.mark.parametrize(
    "settings",
    [{}, {"correction": "raw"}, {"percentile": 0.5}, {"window": 20}, {"warmup_rounds": 50}, {"filter": "accept_all"}],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_real_server_accepts(settings: dict[str, Any], seed: int) -> None:
    verdicts = [verdict for _, _, verdict in attacked(250, seed, **settings)]
    assert len(verdicts) > 50
    assert all(verdict.accepted for verdict in verdicts)


def test_ball_interval_by_hand() -> None:
    ball = Ball(np.array([3.0, 0.0]), 1.0)
    right, zero = np.array([2.0, 0.0]), np.zeros(2)
    assert ball.interval(zero, right) == (1.0, 2.0)  # enters at 2, leaves at 4
    assert ball.interval(zero, -right) is None  # behind
    assert ball.interval(zero, np.array([0.0, 1.0])) is None  # beside
    assert ball.interval(np.array([3.0, 0.0]), right) == (0.0, 0.5)  # from within
    assert ball.project(np.array([3.0, 5.0])).tolist() == [3, 1]


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 6))
def test_median_with_copies_is_the_median(seed: int, num: int, copies: int) -> None:
    rows = random_rows(seed, num + 1)
    update, estimates = rows[0] * 2, rows[1:]
    stacked = np.concatenate([estimates, np.repeat(update[None], copies, axis=0)])
    median = MedianEffect(estimates, copies).median(update.astype(np.float64))
    np.testing.assert_allclose(median, coordinate_median(stacked), rtol=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 6))
def test_median_before_the_attack_has_no_effect(seed: int, num: int, copies: int) -> None:
    effect = MedianEffect(random_rows(seed, num), copies)
    assert effect(effect.before) == 0


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 6))
def test_effect_does_not_fall_along_a_ray(seed: int, num: int, copies: int) -> None:
    estimates = random_rows(seed, num)
    effect = MedianEffect(estimates, copies)
    for p in directions(estimates, effect.before):
        effects = [effect(effect.before + gamma * p) for gamma in np.linspace(0, 20, 60)]
        assert (np.diff(effects) >= -1e-12).all()


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 6), st.floats(0.1, 10))
def test_shortened_ray_keeps_its_effect_and_stays_feasible(seed: int, num: int, copies: int, radius: float) -> None:
    rows = random_rows(seed, num + 1)
    estimates, ball = rows[1:], Ball(rows[0].astype(np.float64), radius)
    effect = MedianEffect(estimates, copies)
    for p in directions(estimates, effect.before):
        candidate = ray_candidate(effect.before, p, ball, 100.0)
        short = shortened(effect, candidate, 0.999, 40)
        assert effect(short) >= 0.999 * effect(candidate.update) * (1 - 1e-12)
        assert length(short - ball.centre) <= radius * (1 + 1e-9)
        assert length(short - effect.before) <= length(candidate.update - effect.before) * (1 + 1e-9)


def shadow_after(num_honest: int, *, with_sender: bool, dim: int = 131) -> tuple[SecureAFL, Model]:
    """A shadow that knows some honest clients, a few factors, and perhaps the sender."""
    problem, secure, rng = Quadratic(num_clients=10, dim=dim), SecureAFL.paper(dim), np.random.default_rng(2)
    model = Model(0, np.zeros(dim, np.float32))
    for version in range(3 * num_honest + 3):
        client = version % num_honest if version < 3 * num_honest or not with_sender else 8
        model = Model(version, model.params + 0.1 * rng.normal(size=dim).astype(np.float32))
        secure.step(Update(ClientId(client), model, problem.noisy_gradient(client, model.params, rng)), model)
    return secure, model


@pytest.mark.parametrize("with_sender", [True, False])
@pytest.mark.parametrize("num_honest", [5, 6])
def test_effect_is_at_least_0_999_of_the_best_candidate(num_honest: int, *, with_sender: bool) -> None:
    secure, model = shadow_after(num_honest, with_sender=with_sender)
    moved = Model(40, model.params + np.float32(0.05))
    seen = view(base=moved, model=moved, shadow=secure)
    sent = Adaptive().update(seen).astype(np.float64)

    estimates = np.stack([secure.estimate(ClientId(k), moved.params) for k in range(num_honest)])
    effect, ball = MedianEffect(estimates, 3), feasible(secure, seen.client, moved.params, 1e-6)
    assert ball.judged == with_sender
    reach = 10 * max(length(row) for row in estimates)
    candidates = [ray_candidate(effect.before, p, ball, reach).update for p in directions(estimates, effect.before)]
    candidates += [ball.centre, ball.project(-seen.gradient.astype(np.float64))]
    assert len(candidates) == 5
    best = max(effect(candidate) for candidate in candidates)
    assert best > 0
    assert effect(sent) >= 0.999 * best * (1 - 1e-5)
    assert length(sent - ball.centre) <= ball.radius * (1 + 1e-6)


def test_on_an_unchanged_model_the_reference_is_repeated() -> None:
    secure, model = shadow_after(5, with_sender=True)
    reference = secure.history.last_delta(ClientId(8)).copy()
    assert secure.step(Update(ClientId(8), model, reference), model).accepted  # now `model` is its base: r = 0
    sent = Adaptive().update(view(base=model, model=model, shadow=secure))
    np.testing.assert_array_equal(sent, reference)


def test_empty_log_still_rejects_a_change_on_an_unchanged_model() -> None:
    secure, here = SecureAFL.paper(131), Model(0, np.zeros(131, np.float32))
    first = np.ones(131, np.float32)
    secure.step(Update(ClientId(8), here, first), here)
    assert secure.allowance(ClientId(8), here.params) == 0.0
    np.testing.assert_array_equal(Adaptive().update(view(base=here, model=here, shadow=secure)), first)


def test_first_contact_is_bounded_by_the_clip_norm() -> None:
    secure, model = shadow_after(5, with_sender=False)
    assert length(Adaptive().update(view(base=model, model=model, shadow=secure))) <= 50


def test_first_of_all_reverses_its_gradient() -> None:
    seen = view()
    sent = Adaptive().update(seen)
    np.testing.assert_allclose(sent, -seen.gradient * min(1, 50 / length(seen.gradient)), rtol=1e-5)


def test_a_radius_below_float_precision_never_leads_to_rejection() -> None:
    secure, here = SecureAFL.paper(131), Model(0, np.zeros(131, np.float32))
    big = np.full(131, 4e6, np.float32) / np.float32(1e6)
    for client in (0, 1, 8):
        secure.step(Update(ClientId(client), here, big), here)
    far = Model(1, np.full(131, 1.0, np.float32))
    for client in (0, 1):  # factors of about 1e-7: nearly nothing may change
        secure.step(Update(ClientId(client), far, big + np.float32(5e-7)), far)
    sent = Adaptive().update(view(base=far, model=far, shadow=secure))
    assert secure.step(Update(ClientId(8), far, sent), far).accepted


def test_nothing_is_random() -> None:
    secure, model = shadow_after(6, with_sender=True)
    moved = Model(40, model.params + np.float32(0.05))
    updates = [
        Adaptive().update(view(base=moved, model=moved, shadow=secure, rng=np.random.default_rng(s))) for s in (1, 2)
    ]
    np.testing.assert_array_equal(updates[0], updates[1])


class Open(SecureAFL):
    """SecureAFL that tells beforehand how much would count, and who would be one of a group."""

    longest, furthest = 4.0, 0.5

    def __init__(self, dim: int, **settings: Any) -> None:
        super().__init__(dim, SecureAFLSettings.paper(**settings))
        self.asked: list[Vector] = []
        self.alike = False

    def limits(self, client: ClientId) -> tuple[float, float]:
        return self.longest, self.furthest

    def would_be_alike(self, client: ClientId, delta: Vector) -> bool:
        self.asked.append(delta)
        return self.alike


def open_shadow(**settings: Any) -> tuple[Open, Model]:
    """Knows five honest clients and the sender, whose reference is 3 long."""
    problem, secure, rng = Quadratic(num_clients=10, dim=131), Open(131, **settings), np.random.default_rng(2)
    model = Model(0, np.zeros(131, np.float32))
    for version in range(16):
        model = Model(version, model.params + 0.1 * rng.normal(size=131).astype(np.float32))
        delta = problem.noisy_gradient(version % 5, model.params, rng)
        client = ClientId(version % 5 if version < 15 else 8)
        secure.step(Update(client, model, delta if client < 8 else delta * np.float32(3 / length(delta))), model)
    return secure, Model(40, model.params + np.float32(0.5))


def test_an_update_keeps_to_the_limits_within_which_it_counts_in_full() -> None:
    secure, model = open_shadow()
    reference = secure.history.last_delta(ClientId(8))
    assert secure.allowance(ClientId(8), model.params) > 1.0  # the filter alone would let more pass
    sent = Adaptive().update(view(base=model, model=model, shadow=secure))
    assert length(sent - reference) == pytest.approx(0.5, rel=1e-4)  # and it goes to the end of it
    secure.furthest, secure.longest = 10.0, 3.2
    sent = Adaptive().update(view(base=model, model=model, shadow=secure))
    assert length(sent) <= 3.2
    assert length(sent - reference) > 0.5


def test_a_region_of_two_balls_by_hand() -> None:
    here = Region(Ball(np.array([3.0, 0.0]), 2.0), Ball(np.zeros(2), 2.0))
    right = np.array([1.0, 0.0])
    assert here.interval(np.zeros(2), right) == (
        1.0,
        2.0,
    )  # from 1, where the first begins, to 2, where the second ends
    assert here.interval(np.zeros(2), -right) is None
    assert Region(here.near, Ball(np.zeros(2), 0.5)).interval(np.zeros(2), right) is None  # they do not meet
    np.testing.assert_allclose(here.project(np.array([9.0, 0.0])), [2.0, 0.0])
    found = here.project(np.array([1.0, 5.0]))
    assert length(found) <= 2.0 + 1e-6
    assert length(found - here.centre) <= 2.0 + 1e-6


def test_who_would_be_one_of_a_group_sends_its_honest_gradient() -> None:
    secure, model = open_shadow()
    secure.longest = secure.furthest = 1e6
    seen = view(base=model, model=model, shadow=secure, gradient=secure.history.last_delta(ClientId(8)) * 1.01)
    harmful = Adaptive().update(seen)
    assert len(secure.asked) == 5  # every candidate
    secure.alike = True
    sent = Adaptive().update(seen)
    assert (sent != harmful).any()
    np.testing.assert_allclose(sent, seen.gradient, rtol=1e-5)


def test_the_mean_with_copies_is_the_mean() -> None:
    estimates = random_rows(0, 6)
    update = random_rows(1, 1)[0].astype(np.float64)
    stacked = np.concatenate([estimates, np.repeat(update[None], 3, axis=0)])
    moved = length(stacked.mean(axis=0) - estimates.mean(axis=0, dtype=np.float64))
    assert MeanEffect(estimates, 3)(update) == pytest.approx(moved, rel=1e-6)


def test_against_a_mean_the_feasible_point_furthest_from_it_is_best() -> None:
    secure, model = open_shadow(aggregate="mean")
    seen = view(base=model, model=model, shadow=secure)
    sent = Adaptive().update(seen).astype(np.float64)
    estimates = np.stack([secure.estimate(ClientId(k), model.params) for k in range(5)])
    effect, here = MeanEffect(estimates, 3), region(secure, ClientId(8), model.params, 1e-6)
    rays = [ray_candidate(effect.before, p, here, 1e3).update for p in directions(estimates, effect.before)]
    best = max(effect(one) for one in [*rays, here.centre, here.project(-seen.gradient.astype(np.float64))])
    assert effect(sent) >= 0.999 * best * (1 - 1e-5)
    assert isinstance(here, Region)
