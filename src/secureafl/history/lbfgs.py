"""Algorithm 2 without its long vectors: from inner products to the coefficients of a Hessian product.

For a client with remembered pairs (s_j, y_j), j = 1..m from oldest to newest, the L-BFGS matrix applied to v is a
combination of v and the pair rows,

    B v = sigma v + sum_r c_r row_r,    rows = [y_1 .. y_m, s_1 .. s_m],    c = K [Y^T v ; S^T v]

    K = -diag(1, sigma) M^-1 diag(1, sigma),    M = [[-D, L^T], [L, sigma S^T S]],
    A = S^T Y,  D = diag(A),  L = strictly lower part of A,  sigma = s_m.y_m / s_m.s_m.

sigma and K depend only on the pairs' Gram matrix, so they are made once per stored update. This is the compact form
of Byrd, Nocedal and Schnabel (1994), with the blocks in the paper's order.

Shapes: m = pairs in use. All in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

MAX_CONDITION = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """B as two small things: a multiple of the identity and a (2m, 2m) matrix over the pair rows."""

    sigma: float
    matrix: Float

    @classmethod
    def zero(cls, num_pairs: int) -> Operator:
        return cls(0.0, np.zeros((2 * num_pairs, 2 * num_pairs)))


def usable_pair(s_dot_y: float, s_norm: float, y_norm: float, min_curvature: float) -> bool:
    """Whether a pair shows positive curvature: s.y > min_curvature |s| |y|. Keeps sigma > 0 and M invertible."""
    return s_norm > 0.0 and s_dot_y > min_curvature * s_norm * y_norm


def operator(pair_gram: Float, *, strict: bool = True) -> Operator | None:
    """B from the Gram matrix of [y_1..y_m, s_1..s_m], oldest to newest; None if M is too ill-conditioned to solve.

    `strict=False` takes the lower triangle with its diagonal, as a literal `tril` would: it annihilates the newest
    direction and is kept only to show that.
    """
    m = len(pair_gram) // 2
    if m == 0:
        return Operator.zero(0)
    lengths = np.sqrt(np.diag(pair_gram)[m:])
    if not lengths.all():  # too short for the precision that pairs are kept in
        return None
    scale = np.concatenate([1.0 / lengths, 1.0 / lengths])  # B is the same for |s_j| = 1, M better conditioned
    g = pair_gram * scale[:, None] * scale[None, :]
    sy, ss = g[m:, :m], g[m:, m:]
    sigma = float(sy[-1, -1] / ss[-1, -1])
    lower = np.tril(sy, k=-1 if strict else 0)
    middle = np.block([[-np.diag(np.diag(sy)), lower.T], [lower, sigma * ss]])
    if not np.isfinite(middle).all() or np.linalg.cond(middle) > MAX_CONDITION:
        return None
    side = np.concatenate([np.ones(m), np.full(m, sigma)])
    matrix = -side[:, None] * np.linalg.inv(middle) * side[None, :]
    return Operator(sigma, matrix * scale[:, None] * scale[None, :])
