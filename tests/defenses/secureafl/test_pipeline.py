import math

import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl import ClientId, Model, SecureAFL, SecureAFLSettings, Vector
from secureafl.defenses import PAPER_VARIANTS
from secureafl.defenses.lipschitz import FactorLog
from secureafl.defenses.secureafl import AgainstConsensus, HessianProduct, LipschitzFilter
from secureafl.types import Reason


def defense(**settings: object) -> SecureAFL:
    return SecureAFL(3, SecureAFLSettings.paper(**settings))


def secure_log(secure: SecureAFL) -> FactorLog:
    judge = secure.stages.judges[0]
    assert isinstance(judge, LipschitzFilter)
    assert isinstance(judge.factors, FactorLog)
    return judge.factors


def direction(verdict_direction: Vector | None) -> list[float]:
    assert verdict_direction is not None
    return [float(x) for x in verdict_direction]


START = model(0, [0, 0, 0])
SHORTENED = {"shortened_to", "change_shortened_to"}


def test_first_contact_is_accepted_clipped_and_taken_as_it_is() -> None:
    verdict = defense(clip_norm=5).step(update(0, START, [6, 8, 0]), START)
    assert verdict.accepted
    assert verdict.reason == Reason.FIRST_CONTACT
    assert direction(verdict.direction) == [3, 4, 0]
    assert verdict.evidence["norm"] == 10.0
    assert verdict.evidence["shortened_to"] == 0.5


def test_evidence_says_what_a_limit_left_of_an_update() -> None:
    secure = SecureAFL(3, SecureAFLSettings(aggregate="median", max_change=1.0, clip_norm=5.0))
    first = secure.step(update(0, START, [3, 4, 0]), START)
    assert not SHORTENED & first.evidence.keys(), "as long as is allowed"
    moved = model(1, [0, 0, 1])
    turned = secure.step(update(0, moved, [3, -4, 0]), moved)  # 8 from the last one
    assert turned.evidence["change_shortened_to"] == 5 / 8
    assert "shortened_to" not in turned.evidence
    assert secure.history.last_delta(ClientId(0)).tolist() == [3, -1, 0]
    longer = secure.step(update(1, moved, [0, 0, 20]), moved)
    assert longer.evidence["shortened_to"] == 5 / 20
    assert "change_shortened_to" not in longer.evidence, "its first"


def test_a_rejected_update_is_not_shortened() -> None:
    secure = SecureAFL(3, SecureAFLSettings(aggregate="median", max_change=1.0, clip_norm=5.0))
    secure.step(update(0, START, [3, 4, 0]), START)
    verdict = secure.step(update(0, START, [30, 40, 0]), START)
    assert verdict.reason == Reason.CHANGED_ON_SAME_MODEL
    assert not SHORTENED & verdict.evidence.keys()


def test_never_seen_clients_are_left_out() -> None:
    secure = defense(correction="none")
    secure.step(update(0, START, [1, 1, 1]), START)
    second = secure.step(update(1, START, [3, 3, 3]), START)
    assert direction(second.direction) == [2, 2, 2]  # the mean of the two middle values of two
    third = secure.step(update(2, START, [9, 9, 9]), START)
    assert direction(third.direction) == [3, 3, 3]


def test_factor_and_threshold_by_hand() -> None:
    secure = defense(correction="none")
    secure.step(update(0, START, [1, 0, 0]), START)
    moved = model(1, [0, 0, 2])
    smooth = secure.step(update(0, moved, [1, 1, 0]), moved)
    assert smooth.evidence["lipschitz_factor"] == 0.5
    assert smooth.evidence["threshold"] == math.inf
    assert smooth.accepted
    later = model(2, [0, 0, 3])
    abrupt = secure.step(update(0, later, [1, 6, 0]), later)
    assert abrupt.evidence["lipschitz_factor"] == 5.0
    assert abrupt.evidence["threshold"] == 0.5
    assert not abrupt.accepted
    assert abrupt.reason == Reason.CHANGED_TOO_ABRUPTLY
    assert abrupt.direction is None  # nobody else is known


def test_a_different_update_on_the_same_model_is_rejected_and_not_logged() -> None:
    secure = defense()
    secure.step(update(0, START, [1, 0, 0]), START)
    same_params = model(7, [0, 0, 0])  # another version, equal parameters
    verdict = secure.step(update(0, same_params, [2, 0, 0]), same_params)
    assert verdict.reason == Reason.CHANGED_ON_SAME_MODEL
    assert len(secure_log(secure)) == 0
    repeated = secure.step(update(0, same_params, [1, 0, 0]), same_params)
    assert repeated.accepted
    assert repeated.evidence["lipschitz_factor"] == 0.0


def test_a_rejected_update_leaves_references_and_pairs_unchanged() -> None:
    problem = Quadratic(noise=0.02)
    median = problem.defense("secureafl", aggregate="median")
    federation = Federation(problem, median, malicious=frozenset({0}), attack=lambda g: 50 * g)
    for _ in range(200):
        secure = federation.machine.defense
        assert isinstance(secure, SecureAFL)
        before = secure.history.state_dict()
        _, verdict = federation.arrive()
        if not verdict.accepted:
            after = secure.history.state_dict()
            assert all(np.array_equal(before[key], after[key]) for key in before)


def test_history_all_stores_rejected_updates_too() -> None:
    secure = defense(history="all", correction="none")
    secure.step(update(0, START, [1, 0, 0]), START)
    secure.step(update(0, model(1, [1, 0, 0]), [1, 1, 0]), model(1, [1, 0, 0]))
    rejected = secure.step(update(0, model(2, [2, 0, 0]), [9, 9, 9]), model(2, [2, 0, 0]))
    assert not rejected.accepted
    assert secure.history.last_delta(ClientId(0)).tolist() == [9, 9, 9]


def test_estimate_is_exact_on_a_quadratic_along_the_newest_step() -> None:
    problem = Quadratic(dim=6, noise=0.0)
    rng = np.random.default_rng(0)
    secure = SecureAFL(6, SecureAFLSettings.paper(correction="raw", percentile=1.0))
    bases = [rng.normal(size=6).astype(np.float32) for _ in range(4)]
    for version, w in enumerate(bases):
        here = Model(version, w)
        secure.step(update(3, here, problem.gradient(3, w)), here)
    ahead = (bases[3] + 0.7 * (bases[3] - bases[2])).astype(np.float32)
    np.testing.assert_allclose(secure.estimate(ClientId(3), ahead), problem.gradient(3, ahead), rtol=1e-4, atol=1e-5)


def test_step_does_not_depend_on_how_clients_are_numbered() -> None:
    problem = Quadratic()
    order = np.random.default_rng(3).permutation(problem.num_clients)
    runs = []
    for numbering in (np.arange(problem.num_clients), order):
        secure, w, rng = problem.defense("secureafl"), np.zeros(problem.dim, np.float32), np.random.default_rng(4)
        for version in range(120):
            k = int(rng.integers(problem.num_clients))
            here = Model(version, w)
            verdict = secure.step(update(int(numbering[k]), here, problem.noisy_gradient(k, w, rng)), here)
            if verdict.direction is not None:
                w = w - np.float32(0.05) * verdict.direction
        runs.append(w)
    np.testing.assert_array_equal(runs[0], runs[1])


def test_every_coordinate_of_the_step_lies_within_the_votes() -> None:
    problem = Quadratic()
    secure = SecureAFL(problem.dim, SecureAFLSettings(aggregate="median", lead=0.0))
    w, rng = np.zeros(problem.dim, np.float32), np.random.default_rng(5)
    for version in range(100):
        here, k = Model(version, w), int(rng.integers(problem.num_clients))
        received = problem.noisy_gradient(k, w, rng)
        votes = [secure.estimate(c, w) for c in secure.history.clients if c != k]
        verdict = secure.step(update(k, here, received), here)
        if verdict.accepted:
            votes.append(received)
        if verdict.direction is None:
            continue
        assert (verdict.direction >= np.min(votes, axis=0) - 1e-5).all()
        assert (verdict.direction <= np.max(votes, axis=0) + 1e-5).all()
        w = w - np.float32(0.05) * verdict.direction


def test_acceptance_tends_to_the_percentile_when_factors_are_alike_for_all() -> None:
    """White-noise updates on a model that walks at random: the factors of different arrivals are alike in law."""
    secure, rng = (
        SecureAFL(40, SecureAFLSettings.paper(percentile=0.7, correction="none", history="all")),
        np.random.default_rng(0),
    )
    accepted = []
    for version in range(1_500):
        here = Model(version, rng.normal(size=40).astype(np.float32))
        accepted.append(secure.step(update(int(rng.integers(5)), here, rng.normal(size=40)), here).accepted)
    assert np.mean(accepted[300:]) == pytest.approx(0.7, abs=0.04)


@pytest.mark.parametrize("seed", range(3))
def test_raw_correction_blows_up_under_noise_where_bounded_does_not(seed: int) -> None:
    """Mini-batch noise fills the pairs with false curvature. Whoever makes `raw` the default meets this test."""
    longest = {}
    for correction in ("raw", "bounded", "calibrated"):
        problem = Quadratic(num_clients=10, dim=30, noise=0.5, seed=seed)
        secure = SecureAFL(30, SecureAFLSettings.paper(correction=correction, clip_norm=1e9), server_lr=0.05)
        federation = Federation(problem, secure, seed=seed)
        longest[correction] = 0.0
        for _ in range(300):
            federation.arrive()
            now = federation.machine.model.params
            for client in secure.history.clients:
                length = np.linalg.norm(secure.estimate(client, now)) / np.linalg.norm(
                    secure.history.last_delta(client)
                )
                longest[correction] = max(longest[correction], float(length))
    assert longest["raw"] > 20
    assert longest["bounded"] <= 1.5 + 1e-4
    assert longest["calibrated"] <= 1.5 + 1e-4


def test_estimates_are_clipped() -> None:
    secure = SecureAFL(2, SecureAFLSettings.paper(correction="raw", clip_norm=1.0, percentile=1.0))
    for version, w in enumerate([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0]]):
        here = model(version, w)
        secure.step(update(0, here, np.asarray(w) * 4), here)
    far = np.array([100.0, 0.0], np.float32)
    np.testing.assert_allclose(secure.estimate(ClientId(0), far), [1.0, 0.0], rtol=1e-5)


def test_calibration_is_between_none_and_full_and_zero_before_any_evidence() -> None:
    problem = Quadratic(noise=0.0)
    secure = SecureAFL(problem.dim, SecureAFLSettings(aggregate="median", correction="calibrated"), server_lr=0.05)
    assert isinstance(secure.stages.estimate, HessianProduct)
    assert secure.stages.estimate.calibration == 0.0
    Federation(problem, secure).run(200)
    assert 0.3 < secure.stages.estimate.calibration <= 1.0


def test_variant_one_takes_the_mean() -> None:
    secure = defense(correction="none", **PAPER_VARIANTS["I"])
    secure.step(update(0, START, [0, 0, 0]), START)
    secure.step(update(1, START, [0, 0, 3]), START)
    assert direction(secure.step(update(2, START, [9, 3, 0]), START).direction) == [3, 1, 1]


def test_variant_two_steps_only_along_accepted_updates() -> None:
    secure = defense(**PAPER_VARIANTS["II"])
    secure.step(update(0, START, [1, 0, 0]), START)
    assert direction(secure.step(update(1, START, [5, 0, 0]), START).direction) == [5, 0, 0]
    assert secure.step(update(1, START, [6, 0, 0]), START).direction is None  # changed on the same model


def test_variant_three_accepts_everything() -> None:
    problem = Quadratic()
    malicious = frozenset({0, 1})
    federation = Federation(
        problem, problem.defense("secureafl", **PAPER_VARIANTS["III"]), malicious=malicious, attack=lambda g: 100 * g
    )
    assert all(verdict.accepted for _, verdict in federation.run(100))


def test_variant_four_accepts_nothing_after_first_contact() -> None:
    problem = Quadratic()
    verdicts = Federation(problem, problem.defense("secureafl", **PAPER_VARIANTS["IV"])).run(100)
    assert {v.reason for _, v in verdicts if v.accepted} == {Reason.FIRST_CONTACT}
    assert {v.reason for _, v in verdicts if not v.accepted} == {Reason.FILTER_CLOSED}


def test_warmup_lets_everyone_pass_but_logs_factors() -> None:
    secure = defense(warmup_rounds=3)
    secure.step(update(0, START, [1, 0, 0]), START)
    for version in (1, 2):
        here = model(version, [version, 0, 0])
        assert secure.step(update(0, here, [100.0**version, 0, 0]), here).accepted
    assert len(secure_log(secure)) == 2
    here = model(3, [3, 0, 0])
    assert not secure.step(update(0, here, [1e9, 0, 0]), here).accepted


def test_trimmed_mean_is_available() -> None:
    secure = defense(correction="none", aggregate="trimmed_mean", trim=0.34)
    for client, value in enumerate([0, 3, 5]):
        verdict = secure.step(update(client, START, [value, 0, 0]), START)
    assert direction(verdict.direction) == [3, 0, 0]


def test_liars_that_reverse_and_amplify_are_outvoted() -> None:
    problem = Quadratic(num_clients=20, dim=20, noise=0.3)
    attack = {"malicious": frozenset(range(4)), "attack": lambda g: -10 * g}
    defended = Federation(problem, problem.defense("secureafl"), **attack)  # type: ignore[arg-type]
    undefended = Federation(problem, problem.defense("asyncsgd"), **attack)  # type: ignore[arg-type]
    defended.run(600)
    undefended.run(600)
    assert defended.distance < 1.0
    assert undefended.distance > 100.0


def test_paper_reading_is_available_by_name() -> None:
    assert SecureAFL.paper(3, server_lr=0.1).settings.correction == "raw"


def test_what_a_client_adds_by_its_lead_is_its_last_update_minus_its_first() -> None:
    """Whatever it sends in between: nothing builds up."""
    free = {"lead": 0.5, "correction": "none", "percentile": 1.0}
    led, plain = defense(**free), defense(**{**free, "lead": 0.0})
    rng, added = np.random.default_rng(3), np.zeros(3)
    sent = [rng.normal(size=3).astype(np.float32) * 10 for _ in range(30)]
    for version, delta in enumerate(sent):
        here = Model(version, rng.normal(size=3).astype(np.float32))
        ours, theirs = (one.step(update(0, here, delta), here) for one in (led, plain))
        assert ours.direction is not None
        assert theirs.direction is not None
        added += ours.direction - theirs.direction
    assert added == pytest.approx(0.5 * (sent[-1] - sent[0]), abs=1e-4)


def test_no_update_counts_as_further_away_than_the_limit() -> None:
    secure = defense(max_change=2.0, percentile=1.0, correction="none")
    for version in range(9):
        here = model(version, [version, 0, 0])
        secure.step(update(0, here, [5 + version % 2, 0, 0]), here)  # changes by 1 each time
    far = model(9, [9, 0, 0])
    assert secure.step(update(0, far, [8, 0, 0]), far).accepted
    assert secure.history.last_delta(ClientId(0)).tolist() == [7, 0, 0]  # from 5, by twice the usual


def push_of_twelve_colluders(alike: float | None) -> float:
    """How far the last 200 of 600 steps go the way of twelve who want the same; thirty want each something else."""
    rng = np.random.default_rng(4)
    goals = rng.normal(size=(31, 400))
    secure = SecureAFL(
        400, SecureAFLSettings(aggregate="median", alike=alike, lead=0.0, opposition=None, tolerance=100.0)
    )
    pushes, lie = [], goals[30]
    for version in range(600):
        here, client = Model(version, rng.normal(size=400).astype(np.float32)), version % 42
        sent = goals[min(client, 30)] + rng.normal(size=400)
        verdict = secure.step(update(client, here, sent), here)
        assert verdict.direction is not None
        pushes.append(float(verdict.direction @ lie / (lie @ lie)))
        if version >= 400 and alike is not None:
            assert verdict.evidence["alike"] == (1 if client < 30 else 12)
    return float(np.mean(pushes[-200:]))


def test_a_large_group_of_alike_clients_has_hardly_a_vote() -> None:
    assert 0.0 < push_of_twelve_colluders(alike=0.5) < 0.1 * push_of_twelve_colluders(alike=None)


def test_no_update_counts_as_longer_than_the_limit() -> None:
    secure = defense(max_change=2.0, percentile=1.0, correction="none")
    for version in range(9):
        here = model(version, [version, 0, 0])
        secure.step(update(0, here, [0, 1 if version % 2 else -1, 0]), here)  # changes by 2 each time
    far = model(9, [9, 0, 0])
    assert secure.step(update(0, far, [0, 1000, 0]), far).accepted
    assert secure.history.last_delta(ClientId(0)).tolist() == [0, 2, 0]  # twice as long as usual


def test_a_newcomer_counts_as_no_longer_than_the_limit() -> None:
    secure = defense(max_change=2.0, correction="none")
    for client in range(5):
        secure.step(update(client, START, [1, 0, 0]), START)
    secure.step(update(5, START, [0, 30, 0]), START)
    assert secure.history.last_delta(ClientId(5)).tolist() == [0, 2, 0]


def test_one_rejected_too_often_in_a_row_has_no_vote_until_it_is_believed_again() -> None:
    secure = defense(exclude_after=2, correction="none", tolerance=1e-9)
    secure.step(update(0, START, [1, 1, 1]), START)
    secure.step(update(1, START, [3, 3, 3]), START)
    moved = model(1, [1, 0, 0])
    assert secure.step(update(1, moved, [4, 3, 3]), moved).accepted  # the first factor of all passes
    for number in range(2, 4):
        later = model(number, [number, 0, 0])
        verdict = secure.step(update(0, later, [9 * number, 0, 0]), later)
        assert not verdict.accepted
    quiet = secure.step(update(2, later, [8, 3, 3]), later)
    assert direction(quiet.direction) == [6, 3, 3]  # of clients 1 and 2 alone
    assert secure.step(update(0, later, [1, 1, 1]), later).accepted  # no change at all
    again = secure.step(update(3, later, [5, 5, 5]), later)
    assert direction(again.direction) == [4.5, 3, 3]


def test_factors_tell_behaviour_rather_than_how_little_the_model_moved() -> None:
    paper, damped = (defense(correction="none", tolerance=1.5, gap_damping=damping) for damping in (0.0, 1.0))
    for secure in (paper, damped):
        for version in range(8):
            here = model(version, [version, 0, 0])
            secure.step(update(0, here, [0, version % 2, 0]), here)
        near = model(8, [7.01, 0, 0])
        verdict = secure.step(update(0, near, [0, 0, 0]), near)  # the same step as ever, over a hundredth of the gap
        assert verdict.accepted == (secure is damped)


def test_those_who_pull_against_the_crowd_lose_their_votes_while_there_is_a_common_direction() -> None:
    problem, rng = Quadratic(num_clients=20, dim=60, noise=0.3), np.random.default_rng(0)
    secure = SecureAFL(60, SecureAFLSettings(aggregate="median"))
    caught: set[int] = set()
    consensus = secure.stages.judges[1]
    assert isinstance(consensus, AgainstConsensus)
    w = np.zeros(60, np.float32)
    for version in range(150):
        here, k = Model(version, w), int(rng.integers(20))
        delta = problem.noisy_gradient(k, w, rng)
        if k < 4:
            delta = -5 * np.mean([problem.gradient(c, w) for c in range(20)], axis=0)
        verdict = secure.step(update(k, here, delta), here)
        if verdict.direction is not None:
            w = w - np.float32(0.05) * verdict.direction
        caught |= consensus.agreement.opposing
    liars = {0, 1, 2, 3}
    assert len(caught & liars) >= 2
    assert len(caught & liars) >= len(caught - liars)
