import numpy as np

from secureafl.lab.attacks import SignFlip
from secureafl.testing.attack_views import view


def test_update_is_the_negated_gradient() -> None:
    assert SignFlip().update(view(gradient=np.array([1, -2, 0.5], np.float32))).tolist() == [-1, 2, -0.5]
