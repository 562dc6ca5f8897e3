import numpy as np

from secureafl import kernels


def test_dot() -> None:
    assert kernels.dot(np.array([1, 2, 3], np.float32), np.array([1, 0, 2], np.float32)) == 7.0


def test_a_sketch_adds_up_every_so_many_coordinates_with_their_signs() -> None:
    delta = np.arange(1, 2 * kernels.BLOCK + 3, dtype=np.float32)
    signs = np.where(np.arange(len(delta)) % 3 == 0, -1, 1).astype(np.int8)
    padded = np.zeros(3 * kernels.BLOCK)
    padded[: len(delta)] = delta * signs
    sketch = kernels.measure(delta, delta, signs=signs, width=kernels.BLOCK).sketch
    assert sketch.tolist() == padded.reshape(3, -1).sum(axis=0).tolist()
    wide = kernels.measure(delta, delta, signs=signs, width=4 * kernels.BLOCK).sketch
    assert wide.tolist() == [*padded.tolist(), *[0.0] * kernels.BLOCK]


def test_an_update_is_measured_once_to_the_same_bits_as_one_by_one() -> None:
    rng = np.random.default_rng(3)
    delta, base, last_delta, last_base, consensus = rng.normal(size=(5, 5 * kernels.BLOCK + 7)).astype(np.float32)
    found = kernels.measure(delta, base, (last_delta, last_base), consensus)
    assert found.square == kernels.dot(delta, delta)
    assert found.product == kernels.dot(delta, consensus)
    assert found.change is not None
    y, s = delta - last_delta, base - last_base
    assert (found.change.delta_step.tobytes(), found.change.param_step.tobytes()) == (y.tobytes(), s.tobytes())
    assert found.change.delta_change == np.sqrt(kernels.dot(y, y))
    assert found.change.param_change == np.sqrt(kernels.dot(s, s))
    assert found.change.curvature == kernels.dot(s, y)
    assert len(found.sketch) == 0


def test_what_is_not_asked_for_is_not_measured() -> None:
    found = kernels.measure(np.array([3, 4], np.float32), np.zeros(2, np.float32))
    assert (found.square, found.product, found.change, found.sketch.tolist()) == (25.0, 0.0, None, [])


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
