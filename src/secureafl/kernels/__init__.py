"""Fast passes over large arrays. `reference` holds the same maths in plain NumPy."""

from secureafl.kernels.combine import combine, gap_products, gram, squared_distance
from secureafl.kernels.order_statistics import coordinate_median, mean, trimmed_mean

__all__ = ["combine", "coordinate_median", "gap_products", "gram", "mean", "squared_distance", "trimmed_mean"]
