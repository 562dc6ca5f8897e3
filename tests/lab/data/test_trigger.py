from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secureafl.errors import SettingsError
from secureafl.lab.data import Trigger
from secureafl.lab.streams import stream


def trigger(num_channels: int = 3) -> Trigger:
    return Trigger.draw(num_channels, stream(0, "trigger"))


def images(dtype: type[np.generic] = np.uint8) -> npt.NDArray[Any]:
    pixels = stream(0, "images").integers(0, 256, (5, 3, 9, 8))
    return pixels.astype(np.uint8) if dtype == np.uint8 else (pixels / 255).astype(np.float32)


def touched(mark: Trigger) -> npt.NDArray[np.bool_]:
    """(3, 9, 8) which values of an image the mark writes: no pixel of the test image is 2."""
    marked = mark.apply(np.full((1, 3, 9, 8), 2, np.float32))[0]
    written: npt.NDArray[np.bool_] = marked != 2
    return written


def test_values_are_uniform_in_zero_to_one() -> None:
    values = Trigger.draw(3, stream(0, "trigger")).values
    assert values.shape == (3, 4, 4)
    assert values.dtype == np.float32
    assert values.min() >= 0
    assert values.max() < 1
    assert len(np.unique(values)) == 48


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_idempotent(dtype: type[np.generic]) -> None:
    once = trigger().apply(images(dtype))
    assert once.dtype == np.float32
    np.testing.assert_array_equal(trigger().apply(once), once)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_writes_its_corner_and_nothing_else(dtype: type[np.generic]) -> None:
    before = images(dtype)
    kept = before.copy()
    after = trigger().apply(before)
    np.testing.assert_array_equal(before, kept)  # a copy was marked
    np.testing.assert_array_equal(after[0, :, -4:, -4:], trigger().values)
    scaled = before / np.float32(255) if dtype == np.uint8 else before
    after[:, :, -4:, -4:] = scaled[:, :, -4:, -4:]
    np.testing.assert_array_equal(after, scaled)
    assert touched(trigger()).sum() == 16 * 3


def test_quadrants_are_disjoint_and_make_up_the_trigger() -> None:
    parts = [touched(trigger().quadrant(j)) for j in range(4)]
    assert [part.sum() for part in parts] == [4 * 3] * 4
    np.testing.assert_array_equal(np.sum(parts, axis=0), touched(trigger()).astype(int))
    marked = images()
    for j in range(4):
        marked = trigger().quadrant(j).apply(marked)
    np.testing.assert_array_equal(marked, trigger().apply(images()))


def test_the_second_quadrant_is_top_right() -> None:
    corner = touched(trigger().quadrant(1))[0, -4:, -4:]
    assert corner.astype(int).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("index", [-1, 4])
def test_there_are_four_quadrants(index: int) -> None:
    with pytest.raises(SettingsError, match="quadrants 0 to 3"):
        trigger().quadrant(index)


@pytest.mark.parametrize("shape", [(1, 1, 9, 9), (1, 3, 3, 9)])
def test_images_must_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="does not fit"):
        trigger().apply(np.zeros(shape, np.uint8))
