import numpy as np
import pytest

from secureafl.kernels.halves import HalfType, from_half, mixed, to_half


def test_every_float16_is_read_as_numpy_reads_it() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    found = from_half(every, 1.0, "float16")
    np.testing.assert_array_equal(found, every.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(every))


@pytest.mark.parametrize("length", [1, 511, 512, 1300])
def test_float16_rounds_as_numpy_does(length: int) -> None:
    rng = np.random.default_rng(length)
    values = (rng.normal(size=length) * 2.0 ** rng.integers(-40, 10, length)).astype(np.float32)
    bits, scale = to_half(values, "float16")
    expected = (values / np.float32(scale)).astype(np.float16)
    np.testing.assert_array_equal(bits, expected.view(np.uint16))
    assert 2.0**13 < np.abs(expected.astype(np.float64)).max() <= 2.0**15


def test_bfloat16_rounds_to_the_nearest_and_to_the_even_one_of_two() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -1.004, 3.1415927, 0.0], np.float32)  # 1/256 is half a step
    bits, scale = to_half(values, "bfloat16")
    assert scale == 1.0
    assert from_half(bits, scale, "bfloat16").tolist() == [1.0, 1.0, 1.015625, -1.0078125, 3.140625, 0.0]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [1e-36, 1e-20, 1e-4, 1.0, 1e4, 1e18])
def test_what_was_rounded_once_is_rounded_no_more(kind: HalfType, size: float) -> None:
    rng = np.random.default_rng(1)
    for largest in (1.0, 1 - 2.0**-12, 1 - 2.0**-11, 0.75):
        values = (size * np.append(rng.uniform(-0.7, 0.7, 600), largest)).astype(np.float32)
        once = from_half(*to_half(values, kind), kind)
        np.testing.assert_array_equal(from_half(*to_half(once, kind), kind), once)
        assert np.abs(once - values).max() <= np.float32(size) * 2.0**-8


def test_nothing_stays_nothing() -> None:
    bits, scale = to_half(np.zeros(3, np.float32), "float16")
    assert (bits.tolist(), scale) == ([0, 0, 0], 1.0)


def test_a_mixture_of_two() -> None:
    a, b = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    assert mixed(a, 0.5, b, 0.25).tolist() == [3.0, 6.0, 9.0]
