"""The backdoor trigger: a small square of random values in the bottom right corner of an image.

It is written after augmentation and before normalisation, so its values are those of pixels, in [0, 1).

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError
from secureafl.lab.arrays import Images

SIDE = 4
NUM_QUADRANTS = 4


@dataclass(frozen=True, eq=False)
class Trigger:
    """A small mark in an image's corner.

    values  (C, 4, 4) float32 in [0, 1)
    mask    (4, 4) which of them are written; all of them, except in a `quadrant`
    """

    values: npt.NDArray[np.float32]
    mask: npt.NDArray[np.bool_]

    @classmethod
    def draw(cls, num_channels: int, rng: np.random.Generator) -> Trigger:
        """A trigger of uniform random values."""
        values = rng.random((num_channels, SIDE, SIDE), dtype=np.float32)
        return cls(values, np.ones((SIDE, SIDE), np.bool_))

    def quadrant(self, j: int) -> Trigger:
        """One 2 x 2 part of the trigger, left to right and top to bottom; four colluders share it (DBA)."""
        if not 0 <= j < NUM_QUADRANTS:
            raise SettingsError(f"quadrant = {j}: a trigger has quadrants 0 to {NUM_QUADRANTS - 1}")
        half = SIDE // 2
        top, left = half * (j // 2), half * (j % 2)
        part = np.zeros_like(self.mask)
        part[top : top + half, left : left + half] = True
        return Trigger(self.values, self.mask & part)

    def apply(self, x: Images) -> npt.NDArray[np.float32]:
        """A float32 copy of the images (N, C, H, W), in [0, 1], with the trigger written over their corner."""
        channels, height, width = x.shape[-3:]
        if channels != len(self.values) or height < SIDE or width < SIDE:
            raise SettingsError(f"a trigger of shape {self.values.shape} does not fit images of shape {x.shape}")
        stamped = as_floats(x)
        corner = stamped[..., -SIDE:, -SIDE:]
        corner[..., self.mask] = self.values[:, self.mask]
        return stamped


def as_floats(images: Images) -> npt.NDArray[np.float32]:
    """A copy with pixels in [0, 1]: bytes are divided by 255, float32 is taken as it is."""
    if images.dtype == np.uint8:
        return np.divide(images, np.float32(255), dtype=np.float32)
    return np.array(images, np.float32)
