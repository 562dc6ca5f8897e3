import numpy as np

from secureafl import kernels


def test_dot() -> None:
    assert kernels.dot(np.array([1, 2, 3], np.float32), np.array([1, 0, 2], np.float32)) == 7.0


def test_a_sketch_adds_up_every_so_many_coordinates_with_their_signs() -> None:
    delta, signs = np.array([1, 2, 3, 4, 5], np.float32), np.array([1, -1, 1, 1, -1], np.int8)
    assert kernels.sketch(delta, signs, 2).tolist() == [1 + 3 - 5, -2 + 4]
    assert kernels.sketch(delta, signs, 8).tolist() == [1, -2, 3, 4, -5, 0, 0, 0]


def test_pair_products() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 130)).astype(np.float32)
    assert np.allclose(kernels.pair_products(rows), rows.astype(np.float64) @ rows.T.astype(np.float64))


def test_change_holds_both_steps_their_lengths_and_product() -> None:
    delta, last_delta = np.array([4, 4], np.float32), np.array([1, 0], np.float32)
    base, last_base = np.array([2, 1], np.float32), np.array([2, 0], np.float32)
    change = kernels.change(delta, last_delta, base, last_base)
    assert change.delta_step.tolist() == [3, 4]
    assert change.param_step.tolist() == [0, 1]
    assert (change.delta_change, change.param_change, change.curvature) == (5.0, 1.0, 4.0)


def test_moved_is_numpys_step_and_none_beyond_the_range_of_numbers() -> None:
    rng = np.random.default_rng(0)
    params, direction = rng.standard_normal((2, 1001)).astype(np.float32)
    expected = params - np.float32(0.3) * direction
    stepped = kernels.moved(params, direction, np.float32(0.3))
    assert stepped is not None
    assert stepped.tobytes() == expected.tobytes()
    for bad in (np.nan, np.inf, -3e38):
        direction[500] = bad
        params[500] = 3e38
        assert kernels.moved(params, direction, np.float32(1.0)) is None
