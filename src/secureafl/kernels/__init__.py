"""Fast passes over large arrays. `reference` holds the same maths in plain NumPy."""

from secureafl.kernels import notice
from secureafl.kernels.chunks import (
    Chunks,
    estimates,
    gap_products,
    moments,
    row_products,
    row_square,
)
from secureafl.kernels.fused import Step, fused_step
from secureafl.kernels.order_statistics import Rule, coordinate_median, trimmed_mean
from secureafl.kernels.simd import BLOCK
from secureafl.kernels.sums import FULL, Replaced, Sum, Surveyed, products_with, replace, reweigh, survey
from secureafl.kernels.vectors import (
    Change,
    Measured,
    change,
    cosine,
    dot,
    measure,
    moved,
    pair_products,
    subtracted,
    without_denormals,
)

notice.install()

__all__ = [
    "BLOCK",
    "FULL",
    "Change",
    "Chunks",
    "Measured",
    "Replaced",
    "Rule",
    "Step",
    "Sum",
    "Surveyed",
    "change",
    "coordinate_median",
    "cosine",
    "dot",
    "estimates",
    "fused_step",
    "gap_products",
    "measure",
    "moments",
    "moved",
    "pair_products",
    "products_with",
    "replace",
    "reweigh",
    "row_products",
    "row_square",
    "subtracted",
    "survey",
    "trimmed_mean",
    "without_denormals",
]
