import numpy as np

from secureafl import kernels


def test_dot() -> None:
    assert kernels.dot(np.array([1, 2, 3], np.float32), np.array([1, 0, 2], np.float32)) == 7.0


def test_change_holds_both_steps_their_lengths_and_product() -> None:
    delta, last_delta = np.array([4, 4], np.float32), np.array([1, 0], np.float32)
    base, last_base = np.array([2, 1], np.float32), np.array([2, 0], np.float32)
    change = kernels.change(delta, last_delta, base, last_base)
    assert change.delta_step.tolist() == [3, 4]
    assert change.param_step.tolist() == [0, 1]
    assert (change.delta_change, change.param_change, change.curvature) == (5.0, 1.0, 4.0)
