import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl import Layout
from secureafl.errors import SettingsError
from secureafl.lab.attacks import threedfed_maths as maths
from secureafl.lab.attacks.attack import Float
from secureafl.lab.attacks.threedfed_maths import Outcome

R, C, A = Outcome.REJECTED, Outcome.CLIPPED, Outcome.ACCEPTED


def design(update: Float, start: Float, alpha: float = 0.5, num_steps: int = 30) -> Float:
    return maths.design_masks(
        update, start, alpha, energy_weight=0.1, norm_weight=0.01, rate=0.1, dual_rate=0.1, num_steps=num_steps
    )


def test_rows_of_the_final_layer_by_hand() -> None:
    layout = Layout.of({"conv": np.zeros((2, 1, 1, 1)), "fc.weight": np.zeros((3, 2)), "fc.bias": np.zeros(3)})
    assert maths.final_rows(layout, 3).tolist() == [[2, 3, 8], [4, 5, 9], [6, 7, 10]]
    without_bias = Layout.of({"fc.weight": np.zeros((3, 1))})
    assert maths.final_rows(without_bias, 3).tolist() == [[0], [1], [2]]
    with pytest.raises(SettingsError, match="no final layer of 4 rows"):
        maths.final_rows(layout, 4)


def test_pull_to_base_is_a_unit_vector_and_zero_at_the_start() -> None:
    base = np.array([1, 1], np.float32)
    assert maths.pull_to_base(base, base).tolist() == [0, 0]
    np.testing.assert_allclose(maths.pull_to_base(np.array([4, 5], np.float32), base), [0.6, 0.8], rtol=1e-6)


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.01, 0.99))
def test_masks_of_one_cycle_sum_to_zero(seed: int, num_masks: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    masks = design(0.1 * rng.normal(size=(5, 7)), 0.01 * rng.normal(size=(num_masks, 5, 7)), alpha)
    np.testing.assert_allclose(masks.sum(axis=0), 0, atol=1e-12)


def test_optimised_masks_give_rows_energy() -> None:
    rng = np.random.default_rng(0)
    update, start = 0.01 * rng.normal(size=(5, 50)), 0.01 * rng.normal(size=(2, 5, 50))
    before, after = design(update, start, num_steps=0), design(update, start)
    energy = [np.abs(update + masks).sum(axis=2).min() for masks in (before, after)]
    assert energy[1] > 2 * energy[0]
    timid = design(update, start, alpha=0.01)
    assert np.linalg.norm(timid) < np.linalg.norm(after)


def test_indicator_is_the_flattest_of_the_quietest_allowed() -> None:
    activity = np.array([0, 1, 2, 3, 9], np.float32)
    curvature = np.array([0, 5, -1, 4, 0], np.float32)
    assert maths.indicator_place(activity, curvature, np.array([1, 2, 3, 4]), 3) == 2
    assert maths.indicator_place(activity, np.zeros(5, np.float32), np.array([3, 1]), 2) == 1  # ties by index


def test_indicator_value_is_amplified_capped_and_never_zero() -> None:
    assert maths.indicator_value(2e-6, 1e5, 7.0, 1.0) == pytest.approx(0.2)
    assert maths.indicator_value(-1.0, 1e5, 7.0, 3.0) == -3
    assert maths.indicator_value(0.0, 1e5, 7.0, 30.0) == 7


def test_plain_step_reads_as_one_and_an_unchanged_model_as_zero() -> None:
    w, m, server_lr = 0.3, 0.8, 0.01
    assert maths.feedback(w, w - server_lr * m, server_lr, m) == pytest.approx(1)
    assert maths.feedback(w, w, server_lr, m) == 0


def test_outcomes_by_hand() -> None:
    phi = np.array([0.0, 1e-6, 0.5, 0.81, 1.0])
    assert maths.outcomes(phi, 1e-5, 0.8).tolist() == [R, R, C, A, A]


def test_noise_is_what_neither_verdict_explains() -> None:
    assert not maths.is_noise(np.array([0.0, 1.0, 1.0005, -1e-6]), 1e-5, 1e-3)
    assert maths.is_noise(np.array([0.5, 1.1]), 1e-5, 1e-3)
    assert maths.is_noise(np.array([0.5, -0.1]), 1e-5, 1e-3)


def test_a_group_is_accepted_by_the_share_of_its_updates() -> None:
    groups, results = np.array([0, 0, 1, 1, 1, 1, 1]), np.array([A, C, A, A, A, A, R])
    assert maths.accepted_groups(groups, results, 3, 0.8).tolist() == [False, True, False]  # the third sent nothing


def test_alphas_are_tuned_by_how_many_groups_were_accepted() -> None:
    alphas = np.array([0.6, 0.3, 0.8])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        none = maths.tuned(alphas, np.array([False] * 3), rng, 0.1)
        assert ((none >= 0.01) & (none <= 0.99)).all()
        some = maths.tuned(alphas, np.array([True, False, True]), rng, 0.1)
        assert ((some >= 0.6) & (some <= 0.7)).all()
        every = maths.tuned(alphas, np.array([True] * 3), rng, 0.1)
        assert ((every >= 0.3) & (every <= 0.6)).all()
    lone = maths.tuned(np.array([0.4]), np.array([True]), np.random.default_rng(0), 0.1)
    assert lone.tolist() == [0.4]
    assert (maths.tuned(np.array([0.99, 0.2]), np.array([True, False]), np.random.default_rng(0), 0.1) == 0.99).all()


def test_decoys_come_when_all_are_rejected_and_go_when_believed() -> None:
    nobody = np.array([], np.int64)
    assert maths.tuned_decoys(0, np.array([R, R]), nobody, 5) == 1
    assert maths.tuned_decoys(1, np.array([R, C]), nobody, 5) == 1
    assert maths.tuned_decoys(3, np.array([R, R]), np.array([A, R, A]), 5) == 1
    assert maths.tuned_decoys(2, np.array([R]), np.array([R, R]), 2) == 2  # no more than there are to spare
