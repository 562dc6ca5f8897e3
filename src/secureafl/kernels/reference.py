"""The maths of the server step in plain NumPy: literal, slow, and the truth every fast kernel is tested against.

Shapes: n = clients, d = parameters, m = remembered pairs. Everything is computed in float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


def coordinate_median(rows: npt.NDArray[np.floating]) -> Float:
    """(n, d) -> (d,): the middle value of each column, the mean of the two middle ones for even n. Eq. (4)-(5)."""
    ordered = np.sort(rows.astype(np.float64), axis=0)  # NaN sorts last, so a NaN row counts as +inf
    middle = len(ordered) // 2
    return np.asarray(ordered[middle] if len(ordered) % 2 else 0.5 * ordered[middle - 1] + 0.5 * ordered[middle])


def trimmed_mean(rows: npt.NDArray[np.floating], num_trimmed: int) -> Float:
    """(n, d) -> (d,): the mean of each column without its `num_trimmed` smallest and largest values."""
    ordered = np.sort(rows.astype(np.float64), axis=0)
    return np.asarray(ordered[num_trimmed : len(ordered) - num_trimmed].mean(axis=0))


def mean(rows: npt.NDArray[np.floating]) -> Float:
    """(n, d) -> (d,)."""
    return np.asarray(rows.astype(np.float64).mean(axis=0))


def hessian_product(param_steps: Float, delta_steps: Float, v: Float, *, strict: bool = True) -> Float:
    """B v of Algorithm 2, lines 4-8: `param_steps` is the paper's Phi (S), `delta_steps` its Pi (Y), both (d, m).

    Columns run from oldest to newest. `strict` takes the *strictly* lower triangle for the paper's J, without
    which the newest direction is annihilated (see decision 0002).
    """
    s, y = param_steps.astype(np.float64), delta_steps.astype(np.float64)
    sy = s.T @ y
    diagonal, lower = np.diag(np.diag(sy)), np.tril(sy, k=-1 if strict else 0)
    sigma = float(y[:, -1] @ s[:, -1] / (s[:, -1] @ s[:, -1]))  # line 6
    middle = np.block([[-diagonal, lower.T], [lower, sigma * s.T @ s]])
    right = np.concatenate([y.T @ v, sigma * (s.T @ v)])
    solved = np.linalg.solve(middle, right)  # line 7
    return np.asarray(sigma * v - np.hstack([y, sigma * s]) @ solved)  # line 8


def bfgs_matrix(param_steps: Float, delta_steps: Float) -> Float:
    """The (d, d) matrix that m explicit BFGS updates make of sigma I: what `hessian_product` applies."""
    newest_s, newest_y = param_steps[:, -1], delta_steps[:, -1]
    matrix = np.eye(len(param_steps)) * (newest_y @ newest_s / (newest_s @ newest_s))
    for s, y in zip(param_steps.T, delta_steps.T, strict=True):
        hs = matrix @ s
        matrix = matrix - np.outer(hs, hs) / (s @ hs) + np.outer(y, y) / (y @ s)
    return np.asarray(matrix)


def percentile(values: Float, fraction: float) -> float:
    """The linearly interpolated `fraction`-quantile of the values. Eq. (3)."""
    return float(np.quantile(values, fraction, method="linear"))
