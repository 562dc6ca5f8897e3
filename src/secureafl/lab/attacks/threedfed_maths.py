"""The formulas of 3DFed: masks that cancel, an indicator to read the server by, and what to make of it.

See `threedfed` for the paper and for where we depart from it.

Shapes: z = classes, h = inputs of the final layer, k = rows a mask covers, q = masks in a set, G = groups.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError
from secureafl.lab.attacks.attack import Float
from secureafl.layout import Layout
from secureafl.types import Vector

Indices = npt.NDArray[np.int64]


class Outcome(IntEnum):
    """What the server did with an update, as far as its indicator tells."""

    REJECTED = 0
    CLIPPED = 1
    ACCEPTED = 2


def final_rows(layout: Layout, num_classes: int) -> Indices:
    """(z, h) or (z, h + 1): which coordinates of the flat vector feed each class, weights first and then the bias."""
    starts = np.cumsum([0, *(entry.size for entry in layout.entries)])
    weights = [i for i, e in enumerate(layout.entries) if len(e.shape) == 2 and e.shape[0] == num_classes]
    if not weights:
        raise SettingsError(f"attack 'threedfed' finds no final layer of {num_classes} rows in this model")
    last = weights[-1]
    rows = starts[last] + np.arange(layout.entries[last].size).reshape(num_classes, -1)
    for i in range(last + 1, len(layout.entries)):
        if layout.entries[i].shape == (num_classes,):
            rows = np.concatenate([rows, starts[i] + np.arange(num_classes)[:, None]], axis=1)
            break
    return np.asarray(rows, np.int64)


def pull_to_base(params: Vector, base: Vector) -> Vector:
    """The gradient of |x - w_b|, unsquared; 0 at the base model itself."""
    gap = params.astype(np.float64) - base
    size = math.sqrt(float(gap @ gap))
    return np.asarray(gap / size if size > 0.0 else gap, np.float32)


def design_masks(
    update: Float,
    start: Float,
    alpha: float,
    *,
    energy_weight: float,
    norm_weight: float,
    rate: float,
    dual_rate: float,
    num_steps: int,
) -> Float:
    """(q, k, h+1): masks that give each covered row energy, stay short, and sum to zero.

    update  (k, h+1) the covered rows of the update, in units of its length
    start   (q, k, h+1) random masks

    Mask N_i descends [alpha sum_j energy_weight / energy_j + (1 - alpha) norm_weight |N_i| + mu norm_weight |sum N|]
    / (1 + mu), energy_j = |update_j + N_ij|_1, while mu ascends on |sum N|. What is left of the sum is taken out at the
    end.
    """
    masks = start - start.mean(axis=0)
    multiplier = 1.0
    for _ in range(num_steps):
        filled = update + masks
        energy = np.maximum(np.abs(filled).sum(axis=2, keepdims=True), 1e-6)
        total = masks.sum(axis=0)
        sum_norm = float(np.linalg.norm(total))
        lengths = np.maximum(np.linalg.norm(masks, axis=(1, 2), keepdims=True), 1e-12)
        slope = -alpha * energy_weight * np.sign(filled) / energy**2 + (1.0 - alpha) * norm_weight * masks / lengths
        slope += multiplier * norm_weight * total / max(sum_norm, 1e-12)
        masks = masks - rate * slope / (1.0 + multiplier)
        multiplier += dual_rate * sum_norm
    return np.asarray(masks - masks.mean(axis=0))


def indicator_place(activity: Vector, curvature: Vector, allowed: Indices, num_candidates: int) -> int:
    """Among the allowed coordinates that move least, the one with the least curvature; ties by index."""
    quiet = allowed[np.argsort(activity[allowed], kind="stable")[:num_candidates]]
    quiet = np.sort(quiet)
    return int(quiet[np.argmin(np.abs(curvature[quiet]))])


def indicator_value(value: float, amplify: float, fallback: float, cap: float) -> float:
    """The coordinate made large enough to be seen again: amplified, or `fallback` if it is 0, and at most `cap`."""
    loud = value * amplify if value != 0.0 else fallback
    return math.copysign(min(abs(loud), cap), loud)


def feedback(before: float, after: float, server_lr: float, sent: float) -> float:
    """phi = (w_before - w_after)_j / (eta m_j): 1 if the server took the update as it was, 0 if it did not move."""
    return (before - after) / (server_lr * sent)


def is_noise(phi: Float, threshold: float, tolerance: float) -> bool:
    """Whether any feedback can only come from noise that the server adds."""
    return bool(((phi > 1.0 + tolerance) | (phi < -threshold)).any())


def outcomes(phi: Float, threshold: float, clipped_below: float) -> npt.NDArray[np.int64]:
    """One `Outcome` for each feedback; clipped are those at most `clipped_below` of the largest."""
    result = np.full(len(phi), Outcome.ACCEPTED, np.int64)
    result[phi <= clipped_below * phi.max(initial=-np.inf)] = Outcome.CLIPPED
    result[phi <= threshold] = Outcome.REJECTED
    return result


def accepted_groups(groups: Indices, results: Indices, num_groups: int, share: float) -> npt.NDArray[np.bool_]:
    """(G,): the groups at least this share of whose updates, and at least one, were accepted."""
    total = np.bincount(groups, minlength=num_groups)
    good = np.bincount(groups[results == Outcome.ACCEPTED], minlength=num_groups)
    return np.asarray((total > 0) & (good >= share * total))


def tuned(alphas: Float, accepted: npt.NDArray[np.bool_], rng: np.random.Generator, spread: float) -> Float:
    """New alphas (G,): anew if no group was accepted, near the smallest good one if some were, between the two smallest
    if all were; a single good group stays as it is.
    """
    good = np.sort(alphas[accepted])
    if len(good) == 0:
        low, high = 0.0, 1.0
    elif len(good) < len(alphas):
        low, high = float(good[0]), float(good[0]) + spread
    elif len(good) == 1:
        return alphas
    else:
        low, high = float(good[0]), float(good[1])
    return np.clip(rng.uniform(low, high, len(alphas)), 0.01, 0.99)


def tuned_decoys(num_decoys: int, backdoors: Indices, decoys: Indices, most: int) -> int:
    """One less for each accepted decoy; one more if every update was rejected."""
    num_accepted = int((decoys == Outcome.ACCEPTED).sum())
    num_decoys = max(0, num_decoys - num_accepted)
    if num_accepted == 0 and (backdoors == Outcome.REJECTED).all():
        num_decoys += 1
    return min(num_decoys, most)
