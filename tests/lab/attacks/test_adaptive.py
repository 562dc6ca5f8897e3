from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.attacks.support import view
from tests.support import Quadratic

from secureafl import ClientId, Machine, MachineSettings, Model, SecureAFL, SecureAFLSettings, Update, Vector, Verdict
from secureafl.kernels import coordinate_median
from secureafl.lab.attacks import Adaptive
from secureafl.lab.attacks.adaptive import Ball, Effect, directions, feasible, ray_candidate, shortened
from secureafl.lab.attacks.attack import View, length

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
        sent = Adaptive().upload(seen)
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
    upload, estimates = rows[0] * 2, rows[1:]
    stacked = np.concatenate([estimates, np.repeat(upload[None], copies, axis=0)])
    median = Effect(estimates, copies).median(upload.astype(np.float64))
    np.testing.assert_allclose(median, coordinate_median(stacked), rtol=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 6))
def test_median_before_the_attack_has_no_effect(seed: int, num: int, copies: int) -> None:
    effect = Effect(random_rows(seed, num), copies)
    assert effect(effect.before) == 0


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 6))
def test_effect_does_not_fall_along_a_ray(seed: int, num: int, copies: int) -> None:
    estimates = random_rows(seed, num)
    effect = Effect(estimates, copies)
    for p in directions(estimates, effect.before):
        effects = [effect(effect.before + gamma * p) for gamma in np.linspace(0, 20, 60)]
        assert (np.diff(effects) >= -1e-12).all()


@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 6), st.floats(0.1, 10))
def test_shortened_ray_keeps_its_effect_and_stays_feasible(seed: int, num: int, copies: int, radius: float) -> None:
    rows = random_rows(seed, num + 1)
    estimates, ball = rows[1:], Ball(rows[0].astype(np.float64), radius)
    effect = Effect(estimates, copies)
    for p in directions(estimates, effect.before):
        candidate = ray_candidate(effect.before, p, ball, 100.0)
        short = shortened(effect, candidate, 0.999, 40)
        assert effect(short) >= 0.999 * effect(candidate.upload) * (1 - 1e-12)
        assert length(short - ball.centre) <= radius * (1 + 1e-9)
        assert length(short - effect.before) <= length(candidate.upload - effect.before) * (1 + 1e-9)


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
    sent = Adaptive().upload(seen).astype(np.float64)

    estimates = np.stack([secure.estimate(ClientId(k), moved.params) for k in range(num_honest)])
    effect, ball = Effect(estimates, 3), feasible(secure, seen.client, moved.params, 1e-6)
    assert ball.judged == with_sender
    reach = 10 * max(length(row) for row in estimates)
    candidates = [ray_candidate(effect.before, p, ball, reach).upload for p in directions(estimates, effect.before)]
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
    sent = Adaptive().upload(view(base=model, model=model, shadow=secure))
    np.testing.assert_array_equal(sent, reference)


def test_empty_log_still_rejects_a_change_on_an_unchanged_model() -> None:
    secure, here = SecureAFL.paper(131), Model(0, np.zeros(131, np.float32))
    first = np.ones(131, np.float32)
    secure.step(Update(ClientId(8), here, first), here)
    assert secure.allowance(ClientId(8), here.params) == 0.0
    np.testing.assert_array_equal(Adaptive().upload(view(base=here, model=here, shadow=secure)), first)


def test_first_contact_is_bounded_by_the_clip_norm() -> None:
    secure, model = shadow_after(5, with_sender=False)
    assert length(Adaptive().upload(view(base=model, model=model, shadow=secure))) <= 50


def test_first_of_all_reverses_its_gradient() -> None:
    seen = view()
    sent = Adaptive().upload(seen)
    np.testing.assert_allclose(sent, -seen.gradient * min(1, 50 / length(seen.gradient)), rtol=1e-5)


def test_a_radius_below_float_precision_never_leads_to_rejection() -> None:
    secure, here = SecureAFL.paper(131), Model(0, np.zeros(131, np.float32))
    big = np.full(131, 4e6, np.float32) / np.float32(1e6)
    for client in (0, 1, 8):
        secure.step(Update(ClientId(client), here, big), here)
    far = Model(1, np.full(131, 1.0, np.float32))
    for client in (0, 1):  # factors of about 1e-7: nearly nothing may change
        secure.step(Update(ClientId(client), far, big + np.float32(5e-7)), far)
    sent = Adaptive().upload(view(base=far, model=far, shadow=secure))
    assert secure.step(Update(ClientId(8), far, sent), far).accepted


def test_nothing_is_random() -> None:
    secure, model = shadow_after(6, with_sender=True)
    moved = Model(40, model.params + np.float32(0.05))
    uploads = [
        Adaptive().upload(view(base=moved, model=moved, shadow=secure, rng=np.random.default_rng(s))) for s in (1, 2)
    ]
    np.testing.assert_array_equal(uploads[0], uploads[1])
