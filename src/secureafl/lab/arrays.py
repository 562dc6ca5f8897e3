"""What images and labels are, throughout the laboratory.

Shapes: N images, C channels, H x W pixels, z classes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Images: TypeAlias = npt.NDArray[Any]
"""(N, C, H, W): raw uint8 pixels, or float32 in [0, 1] after augmentation or a trigger."""

Labels: TypeAlias = npt.NDArray[Any]
"""(N,): int64 class numbers, or float32 targets of a regression."""

Outputs: TypeAlias = npt.NDArray[np.float32]
"""(N, z) logits, or (N,) predictions of a regression."""

Indices: TypeAlias = npt.NDArray[np.int64]
"""Rows of a data set."""
