import math

import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl import Vector
from secureafl.defenses import AsyncSGD, Sageflow, SageflowSettings, Score
from secureafl.types import Reason


def softmax_entropy(logits: Vector) -> float:
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return float(-(p * np.log(p)).sum())


def score(params: Vector) -> Score:
    """A predictor whose logits are the parameters themselves."""
    return Score(loss=float(np.linalg.norm(params - 1)), entropy=softmax_entropy(params))


def test_uniform_predictor_has_entropy_ln_z() -> None:
    assert score(np.zeros(10, np.float32)).entropy == pytest.approx(math.log(10))


def test_a_candidate_equal_to_the_present_model_is_never_rejected() -> None:
    sageflow = Sageflow(10, server_lr=0.1, score=score)
    for seed in range(20):
        here = model(0, np.random.default_rng(seed).normal(size=10) * seed)
        assert sageflow.step(update(0, here, np.zeros(10)), here).accepted


def test_a_model_less_sure_of_itself_is_rejected() -> None:
    sageflow = Sageflow(10, server_lr=1.0, score=score)
    sure = np.zeros(10)
    sure[0] = 20.0
    here = model(0, sure)
    verdict = sageflow.step(update(0, here, sure), here)  # the candidate is the uniform predictor
    assert not verdict.accepted
    assert verdict.reason == Reason.TOO_UNCERTAIN


def test_fresh_and_normalised_it_is_asyncsgd() -> None:
    problem = Quadratic()
    guarded = Federation(problem, Sageflow(problem.dim, server_lr=0.05, score=problem.score), max_delay=0)
    plain = Federation(problem, AsyncSGD(problem.dim), max_delay=0)
    guarded.run(100)
    plain.run(100)
    np.testing.assert_array_equal(guarded.machine.model.params, plain.machine.model.params)


def test_stale_updates_are_damped_by_the_root_of_age_plus_one() -> None:
    sageflow = Sageflow(10, server_lr=0.1, score=score)
    verdict = sageflow.step(update(0, model(0, np.zeros(10)), np.full(10, 2)), model(3, np.zeros(10)))
    assert verdict.direction is not None
    np.testing.assert_allclose(verdict.direction, 1.0)


def test_relative_weight_is_the_ratio_of_losses_and_at_most_one() -> None:
    settings = SageflowSettings(loss_weight="relative")
    sageflow = Sageflow(10, settings, server_lr=1.0, score=score)
    here = model(0, np.full(10, 2))
    worse = sageflow.step(update(0, here, np.full(10, -3)), here)  # candidate 5: four times the loss
    better = sageflow.step(update(0, here, np.full(10, 0.5)), here)
    assert worse.evidence["weight"] == pytest.approx(0.25)
    assert better.evidence["weight"] == 1.0


def test_a_candidate_without_a_finite_score_is_rejected() -> None:
    sageflow = Sageflow(1, server_lr=1.0, score=lambda p: Score(math.nan, math.nan if p[0] else 0.0))
    here = model(0, [0.0])
    assert not sageflow.step(update(0, here, [1.0]), here).accepted
