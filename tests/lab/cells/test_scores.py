import math

import numpy as np
import pytest

from secureafl.errors import SettingsError
from secureafl.lab.cells import scores

LABELS = np.array([0, 0, 1, 2])


def one_hot(classes: list[int], num_classes: int = 3) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.eye(num_classes, dtype=np.float32)[classes]


def test_a_constant_model_is_all_backdoor() -> None:
    logits = one_hot([0, 0, 0, 0])
    assert scores.attack_success_rate(logits, LABELS, target_label=0) == 1.0
    assert scores.error_rate(logits, LABELS) == 1 - 2 / 4  # 1 - share of the target class
    assert scores.largest_class_share(logits) == 1.0


def test_a_perfect_model_that_ignores_the_trigger() -> None:
    logits = one_hot([0, 0, 1, 2])
    assert scores.attack_success_rate(logits, LABELS, target_label=0) == 0.0
    assert scores.error_rate(logits, LABELS) == 0.0
    assert scores.largest_class_share(logits) == 2 / 4


def test_success_counts_only_images_of_other_classes() -> None:
    assert scores.attack_success_rate(one_hot([1, 1, 0, 1]), LABELS, target_label=0) == 1 / 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_diverged_sample_is_wrong_but_no_success(bad: float) -> None:
    logits = one_hot([0, 0, 0, 0])
    logits[0] = bad  # label 0: argmax would say 0, rightly
    logits[2, 1] = bad  # label 1: argmax might say 0, the target
    assert scores.error_rate(logits, LABELS) == 3 / 4
    assert scores.attack_success_rate(logits, LABELS, target_label=0) == 1 / 2
    assert scores.largest_class_share(logits) == 2 / 4
    assert scores.diverged(logits)


def test_a_model_of_nan_predicts_nothing() -> None:
    logits = np.full((4, 3), np.nan, np.float32)
    assert scores.error_rate(logits, LABELS) == 1.0
    assert scores.attack_success_rate(logits, LABELS, target_label=0) == 0.0
    assert scores.largest_class_share(logits) == 0.0


def test_recall_by_class() -> None:
    logits = one_hot([0, 1, 1, 0], num_classes=4)
    np.testing.assert_array_equal(scores.class_recalls(logits, LABELS, 4), [0.5, 1.0, 0.0, np.nan])
    logits[2] = np.nan  # argmax would say 0; nothing is recognised
    assert scores.class_recalls(logits, LABELS, 4)[1] == 0.0


def test_success_needs_an_image_to_turn() -> None:
    with pytest.raises(SettingsError, match="undefined"):
        scores.attack_success_rate(one_hot([0, 0]), np.array([0, 0]), target_label=0)


def test_outputs_and_labels_must_match() -> None:
    with pytest.raises(SettingsError, match="3 outputs for 4 labels"):
        scores.error_rate(one_hot([0, 0, 0]), LABELS)
    with pytest.raises(SettingsError, match="at least one"):
        scores.error_rate(one_hot([]), np.array([], np.int64))


def test_rmse() -> None:
    targets = np.array([0.0, 0.0], np.float32)
    assert scores.root_mean_squared_error(np.array([3.0, 4.0], np.float32), targets) == math.sqrt(12.5)
    assert scores.root_mean_squared_error(np.array([3.0, np.nan], np.float32), targets) == math.inf
    huge = np.array([3e38, 0.0], np.float32)  # its square is beyond float32
    assert scores.root_mean_squared_error(huge, targets) == pytest.approx(3e38 / math.sqrt(2), rel=1e-6)
    assert not scores.diverged(huge)


def test_detection_counts() -> None:
    accepted = np.array([True, False, False, True, False, True])
    malicious = np.array([False, False, True, True, True, False])
    found = scores.detection(accepted, malicious)
    assert found == scores.Detection(2, 1, 1, 2)
    assert found.precision == 2 / 3
    assert found.recall == 2 / 3
    assert found.false_alarm_rate == 1 / 3


def test_detection_without_alarms_or_attackers() -> None:
    found = scores.detection(np.array([True]), np.array([False]))
    assert math.isnan(found.precision)
    assert math.isnan(found.recall)
    assert found.false_alarm_rate == 0.0
    with pytest.raises(SettingsError, match="agree"):
        scores.detection(np.array([True]), np.array([False, True]))


def test_acceptance_by_client() -> None:
    shares = scores.acceptance_by_client(np.array([0, 0, 2, 0]), np.array([True, False, True, False]), 3)
    np.testing.assert_array_equal(shares, [1 / 3, np.nan, 1.0])


def test_estimation_error() -> None:
    gradients = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]], np.float32)
    estimates = np.array([[3.0, 3.0], [2.0, 2.0], [9.0, 9.0]], np.float32)
    assert scores.estimation_error(estimates, gradients) == pytest.approx((1 / 5 + 2 / 2) / 2)
    assert math.isnan(scores.estimation_error(estimates[2:], gradients[2:]))
    with pytest.raises(SettingsError, match=r"\(n, d\)"):
        scores.estimation_error(estimates[0], gradients[0])


def test_percentiles_leave_infinity_out() -> None:
    assert scores.percentiles(np.array([1.0, 2.0, 3.0, np.inf]), (0.0, 50.0, 100.0)) == {
        0.0: 1.0,
        50.0: 2.0,
        100.0: 3.0,
    }
    assert math.isnan(scores.percentiles(np.array([np.inf]), (50.0,))[50.0])
