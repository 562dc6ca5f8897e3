"""Fast passes over large arrays. `reference` holds the same maths in plain NumPy."""

from secureafl.kernels import notice
from secureafl.kernels.chunks import (
    Chunks,
    estimates,
    gap_products,
    moments,
    row_products,
)
from secureafl.kernels.fused import Step, fused_step
from secureafl.kernels.order_statistics import Rule, coordinate_median, mean, trimmed_mean
from secureafl.kernels.simd import BLOCK
from secureafl.kernels.vectors import Change, change, dot, moved, pair_products, sketch

notice.install()

__all__ = [
    "BLOCK",
    "Change",
    "Chunks",
    "Rule",
    "Step",
    "change",
    "coordinate_median",
    "dot",
    "estimates",
    "fused_step",
    "gap_products",
    "mean",
    "moments",
    "moved",
    "pair_products",
    "row_products",
    "sketch",
    "trimmed_mean",
]
