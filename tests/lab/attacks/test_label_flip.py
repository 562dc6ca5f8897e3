import numpy as np
import pytest

from secureafl.errors import SettingsError
from secureafl.lab.attacks import LabelFlip
from secureafl.lab.attacks.label_flip import flip
from secureafl.testing.attack_views import QuadraticTask, view


def test_labels_are_mirrored_by_hand() -> None:
    assert flip(np.array([0, 1, 4]), 5).tolist() == [4, 3, 0]


def test_flip_is_an_involution() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 100)
    assert flip(flip(labels, 10), 10).tolist() == labels.tolist()


def test_update_is_the_gradient_on_flipped_labels() -> None:
    seen = view()
    expected = seen.task.gradient(seen.base.params, seen.batch.x, 4 - seen.batch.y)
    np.testing.assert_array_equal(LabelFlip().update(seen), expected)


def test_a_regression_has_no_labels_to_flip() -> None:
    with pytest.raises(SettingsError, match=r"label_flip.*regression"):
        LabelFlip().update(view(QuadraticTask(num_classes=None)))
