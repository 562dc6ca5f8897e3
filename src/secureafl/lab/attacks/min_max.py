"""Min-Max: go as far from the honest mean as one can without being further from anyone than the honest are apart.

V. Shejwalkar and A. Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
Federated Learning", NDSS 2021.

    m = mu - gamma p,    gamma largest with  max_i |m - u_i| <= D = max_ij |u_i - u_j|

for honest updates u_i with mean mu. The published code searches gamma by halving, which cannot go beyond twice its
starting value. The largest gamma has a closed form: each honest i bounds it by the larger root of a quadratic,

    gamma = min_i [ a_i + sqrt(a_i^2 - |p|^2 (|mu - u_i|^2 - D^2)) ] / |p|^2,    a_i = p . (mu - u_i)

Honest updates arrive one by one here, so the set is each client's latest (`latest`) or fresh gradients of all at the
sender's base model (`fresh`). With fewer than two of them, or without a direction, the honest gradient is sent.

Shapes: n = honest updates, d = parameters.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from secureafl.errors import SettingsError
from secureafl.lab.attacks.attack import Float, Stateless, View, benign_updates, may_diverge
from secureafl.settings import Settings
from secureafl.types import Vector

Direction = Literal["unit", "sign", "std"]


class MinMaxSettings(Settings):
    """Min-Max's settings."""

    direction: Direction = "unit"
    """Which way to leave the mean: along the mean itself, its signs, or the coordinates' deviations. [C]"""
    benign: Literal["latest", "fresh"] = "latest"
    """The honest updates to hide among: the last ones sent, or new gradients at the sender's base model. [A]"""


def perturbation(updates: Float, mean: Float, direction: Direction) -> Float:
    """(n, d), (d,) -> (d,): the direction p."""
    if direction == "sign":
        return np.asarray(np.sign(mean))
    if direction == "std":
        return np.asarray(updates.std(axis=0, ddof=1))
    size = float(np.sqrt(mean @ mean))
    return np.asarray(mean / size) if size > 0.0 else mean


def diameter(gaps: Float) -> float:
    """D: the largest distance between two updates. Taken from their gaps to the mean, less is lost by cancellation."""
    products = gaps @ gaps.T
    squares = np.diag(products)
    return float(np.sqrt(max(0.0, (squares[:, None] + squares[None, :] - 2.0 * products).max())))


def largest_gamma(gaps: Float, p: Float) -> float:
    """The largest gamma whose m = mu - gamma p stays within D of every update; p must not vanish.

    gaps  (n, d) mu - u_i
    """
    a, p_square = gaps @ p, float(p @ p)
    room = np.einsum("nd,nd->n", gaps, gaps) - diameter(gaps) ** 2
    roots = a + np.sqrt(np.maximum(0.0, a**2 - p_square * room))
    return max(0.0, float(roots.min()) / p_square)


class MinMax(Stateless):
    """Recomputed at every update; nothing is random."""

    def __init__(self, settings: MinMaxSettings = MinMaxSettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        updates = self._benign(view).astype(np.float64)
        if len(updates) < 2:
            return view.gradient.copy()
        mean = updates.mean(axis=0)
        p = perturbation(updates, mean, self.settings.direction)
        if not p.any():
            return view.gradient.copy()
        return np.asarray(mean - largest_gamma(mean - updates, p) * p, np.float32)

    def _benign(self, view: View) -> Vector:
        if self.settings.benign == "latest":
            return benign_updates(view)
        if view.benign_gradients is None:
            raise SettingsError("min_max: benign = 'fresh' needs a simulator that offers benign_gradients")
        fresh = view.benign_gradients()
        return np.stack([fresh[client] for client in sorted(fresh)])
