"""3DFed: a backdoor under masks that cancel out, which reads from the next model whether it was accepted and adapts.

H. Li, Q. Ye, H. Hu, J. Li, L. Wang, C. Fang, J. Shi, "3DFed: Adaptive and Extensible Framework for Covert Backdoor
Attack in Federated Learning", IEEE S&P 2023.

    loss       0.3 clean + 0.3 backdoor + 0.4 |x - w_b|;  the update times clip(|honest| / |update|, 1, 5)
    masks      noise on the final layer's rows of some classes other than the target, zero-sum within a group:
               min over N of  alpha sum 1/energy + (1 - alpha) |N|,  dual ascent on |sum N|
    indicator  one quiet, flat coordinate j is made large;  phi = (w_t0 - w_t0+1)_j / (eta m_j)  tells rejected, clipped
               or accepted; a phi that neither can explain means that the server adds noise, and tuning stops
    tuning     alpha of each group, and the number of decoys: clients that look guilty and train clean

Departures, most of them for asynchrony. A group's zero-sum set is dealt to its successive updates, and a new one is
designed when it is used up; what dual ascent leaves of the sum is taken out. Masks are measured in lengths of the
update, because one update here is far shorter than a round of local epochs. Honest length is the median of honest
updates. The indicator may be any coordinate outside the final layer, curvature is a finite difference along the vector
of ones, and the value is no larger than the largest honest coordinate. A round of tuning is as many read indicators as
there are malicious clients. The last `num_decoys` malicious clients are decoys, where the original adds devices; their
guilty weight is put in place, not trained there.

State: alphas, number of decoys, whether noise was met, masks not yet dealt, indicators not yet read, feedback so far.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl.errors import SettingsError
from secureafl.lab.attacks import threedfed_maths as maths
from secureafl.lab.attacks.attack import (
    Batch,
    Float,
    View,
    benign_norm,
    benign_updates,
    length,
    may_diverge,
    rank,
    require_classes,
)
from secureafl.lab.attacks.backdoor import BackdoorSettings, poison, poisoned_gradient, train
from secureafl.types import Array, Model, StateDict, Vector

DECOY = -1


class ThreeDFedSettings(BackdoorSettings):
    """3DFed's settings."""

    num_steps: int = Field(5, ge=1)
    """Local steps E. [A]"""
    clean_weight: float = Field(0.3, ge=0.0)
    """Weight of the loss on clean images. [C]"""
    backdoor_weight: float = Field(0.3, ge=0.0)
    """Weight of the loss on marked mini-batches. [C]"""
    distance_weight: float = Field(0.4, ge=0.0)
    """Weight of the distance to the base model. [C]"""
    max_scale: float = Field(5.0, ge=1.0)
    """Most the update is lengthened to reach honest length. [C]"""
    group_size: int = Field(2, ge=1)
    """Malicious clients that share a zero-sum set of masks. [C]"""
    num_rows: int = Field(5, ge=1)
    """Classes whose rows a mask covers. [C: 5, and 8 for MNIST]"""
    mask_std: float = Field(0.01, gt=0.0)
    """Deviation of the masks before they are optimised, in lengths of the update. [C: 0.01, and 0.05 for MNIST]"""
    mask_steps: int = Field(30, ge=0)
    """Steps of that optimisation. [C]"""
    mask_lr: float = Field(0.1, gt=0.0)
    """Its rate. [C]"""
    dual_lr: float = Field(0.1, gt=0.0)
    """Rate of the ascent on the sum of masks. [C]"""
    energy_weight: float = Field(0.1, ge=0.0)
    """Weight of 1/energy inside it. [C]"""
    norm_weight: float = Field(0.01, ge=0.0)
    """Weight of lengths inside it. [C]"""
    num_candidates: int = Field(10, ge=1)
    """Quiet coordinates looked at for an indicator, times the number of malicious clients. [C]"""
    curvature_step: float = Field(1e-3, gt=0.0)
    """Step of the finite difference that estimates curvature. [A]"""
    amplify: float = Field(1e5, gt=1.0)
    """Factor on the indicator's coordinate. [C]"""
    indicator_fallback: float = Field(1e-3, gt=0.0)
    """Change of the weight where the coordinate is 0. [C: 1e-3, and 1e-2 for MNIST]"""
    reject_threshold: float = Field(1e-5, gt=0.0)
    """Feedback up to here means rejected. [C: 1e-5, and 1e-4 for MNIST]"""
    clipped_below: float = Field(0.8, gt=0.0, le=1.0)
    """Feedback up to this share of the largest means clipped. [C]"""
    noise_tolerance: float = Field(1e-3, ge=0.0)
    """How far above 1 rounding may lift a feedback before it is called noise. [A]"""
    noise_alpha: float = Field(0.1, gt=0.0, lt=1.0)
    """Every group's alpha once noise was met. [C]"""
    accepted_share: float = Field(0.8, gt=0.0, le=1.0)
    """Share of a group's updates that must be accepted for the group to count as accepted. [C]"""
    alpha_spread: float = Field(0.1, gt=0.0)
    """Width of the range above the smallest accepted alpha. [C]"""
    decoy_shift: float = Field(10.0, gt=0.0)
    """How far a decoy drives its one weight away. [C]"""


class ThreeDFed:
    """One object plays all malicious clients."""

    def __init__(self, settings: ThreeDFedSettings = ThreeDFedSettings()) -> None:
        self.settings = settings
        self._alphas: Float = np.empty(0)  # one per group; empty before the first update
        self._num_decoys = 0
        self._noise_met = False
        self._masks: dict[int, Vector] = {}  # per group (masks left, coordinates)
        self._covered: dict[int, maths.Indices] = {}  # per group the coordinates that its masks are for
        self._pending: list[tuple[float, ...]] = []  # version, coordinate, its weight then, what was sent, rate, group
        self._feedback: list[tuple[float, float]] = []  # group, phi

    def observe(self, model: Model) -> None:
        """Read the indicators that this model can answer for."""
        waiting = []
        for entry in self._pending:
            version, place, before, sent, server_lr, group = entry
            if model.version > version:
                after = float(model.params[int(place)])
                self._feedback.append((group, maths.feedback(before, after, server_lr, sent)))
            else:
                waiting.append(entry)
        self._pending = waiting

    @may_diverge
    def update(self, view: View) -> Vector:
        num_classes, s = require_classes(view.task, "threedfed"), self.settings
        if s.num_rows > num_classes - 1:
            raise SettingsError(
                f"threedfed: num_rows = {s.num_rows}; there are {num_classes - 1} classes to choose from"
            )
        self.observe(view.model)
        num_groups = -(-len(view.malicious) // s.group_size)
        if len(self._alphas) == 0:
            self._alphas = maths.tuned(np.zeros(num_groups), np.zeros(num_groups, np.bool_), view.rng, s.alpha_spread)
        if len(self._feedback) >= len(view.malicious):
            self._tune(view, num_groups)
        rows, place = maths.final_rows(view.task.layout, num_classes), rank(view)
        if place >= len(view.malicious) - self._num_decoys:
            group, sent = DECOY, self._decoy(view, rows, len(view.malicious) - 1 - place)
        else:
            group = place // s.group_size
            sent = self._masked(view, self._backdoor(view), group, rows)
        return self._with_indicator(view, sent, group, rows)

    def state_dict(self) -> StateDict:
        state: StateDict = {
            "alphas": self._alphas.copy(),
            "num_decoys": np.array(self._num_decoys, np.int64),
            "noise_met": np.array(self._noise_met, np.int64),
            "pending": np.array(self._pending, np.float64).reshape(-1, 6),
            "feedback": np.array(self._feedback, np.float64).reshape(-1, 2),
        }
        for group, masks in self._masks.items():
            state[f"masks.{group}"], state[f"covered.{group}"] = masks.copy(), self._covered[group].copy()
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._alphas = np.array(state["alphas"], np.float64)
        self._num_decoys = int(np.asarray(state["num_decoys"], np.int64))
        self._noise_met = bool(np.asarray(state["noise_met"], np.int64))
        self._pending = [tuple(row) for row in np.asarray(state["pending"], np.float64).tolist()]
        self._feedback = [(group, phi) for group, phi in np.asarray(state["feedback"], np.float64).tolist()]
        groups = [int(key.removeprefix("masks.")) for key in state if key.startswith("masks.")]
        self._masks = {group: np.array(state[f"masks.{group}"], np.float32) for group in groups}
        self._covered = {group: np.array(state[f"covered.{group}"], np.int64) for group in groups}

    def _backdoor(self, view: View) -> Vector:
        """The trained update, lengthened towards honest length."""
        s, base = self.settings, view.base.params
        marked = poisoned_gradient(view, s.poison_fraction)

        def gradient(params: Vector, batch: Batch) -> Vector:
            clean = view.task.gradient(params, batch.x, batch.y)
            total = s.clean_weight * clean + s.backdoor_weight * marked(params, batch)
            return np.asarray(total + s.distance_weight * maths.pull_to_base(params, base), np.float32)

        sent = train(view, s, gradient)
        size = length(sent)
        scale = float(np.clip(benign_norm(view) / size, 1.0, s.max_scale)) if size > 0.0 else 1.0
        return np.asarray(np.float32(scale) * sent)

    def _masked(self, view: View, sent: Vector, group: int, rows: maths.Indices) -> Vector:
        """The update under the group's next mask."""
        if len(self._masks.get(group, ())) == 0:
            self._design(view, sent, group, rows)
        mask, self._masks[group] = self._masks[group][0], self._masks[group][1:]
        covered = sent.copy()
        covered[self._covered[group]] += mask
        return covered

    def _design(self, view: View, sent: Vector, group: int, rows: maths.Indices) -> None:
        s, unit = self.settings, max(length(sent), 1e-12)
        others = np.delete(np.arange(len(rows)), view.target_label)
        chosen = rows[view.rng.choice(others, s.num_rows, replace=False)]
        masks = maths.design_masks(
            sent[chosen].astype(np.float64) / unit,
            s.mask_std * view.rng.standard_normal((s.group_size, *chosen.shape)),
            float(self._alphas[group]),
            energy_weight=s.energy_weight,
            norm_weight=s.norm_weight,
            rate=s.mask_lr,
            dual_rate=s.dual_lr,
            num_steps=s.mask_steps,
        )
        self._masks[group] = np.asarray(unit * masks.reshape(s.group_size, -1), np.float32)
        self._covered[group] = chosen.reshape(-1)

    def _decoy(self, view: View, rows: maths.Indices, which: int) -> Vector:
        """A clean update with one weight far away: one where clean and marked gradients hardly differ."""
        sent = train(view, self.settings, lambda params, batch: view.task.gradient(params, batch.x, batch.y))
        marked = poisoned_gradient(view, self.settings.poison_fraction)(view.base.params, view.batch)
        weights = rows.reshape(-1)
        alike = np.argsort(np.abs(marked - view.gradient)[weights], kind="stable")
        sent[weights[alike[which % len(weights)]]] -= np.float32(self.settings.decoy_shift / view.server_lr)
        return sent

    def _with_indicator(self, view: View, sent: Vector, group: int, rows: maths.Indices) -> Vector:
        s, updates = self.settings, benign_updates(view)
        free = np.ones(len(sent), np.bool_)
        free[rows] = False
        allowed = np.flatnonzero(free)
        if len(allowed) == 0:
            raise SettingsError("threedfed needs a model with more than a final layer")
        place = maths.indicator_place(
            np.abs(sent) + np.abs(view.gradient),
            self._curvature(view),
            allowed,
            s.num_candidates * len(view.malicious),
        )
        cap = float(np.abs(updates if len(updates) else view.gradient).max())
        value = maths.indicator_value(float(sent[place]), s.amplify, s.indicator_fallback / view.server_lr, cap)
        sent[place] = value
        if sent[place] != 0.0:
            before = float(view.model.params[place])
            self._pending.append((view.model.version, place, before, float(sent[place]), view.server_lr, group))
        return sent

    def _curvature(self, view: View) -> Vector:
        """The Hessian times the vector of ones, on the marked batch."""
        x, y = poison(view.batch, view.trigger, view.target_label, self.settings.poison_fraction)
        base, step = view.base.params, np.float32(self.settings.curvature_step)
        return (view.task.gradient(base + step, x, y) - view.task.gradient(base, x, y)) / step

    def _tune(self, view: View, num_groups: int) -> None:
        s = self.settings
        groups, phi = np.array([g for g, _ in self._feedback], np.int64), np.array([p for _, p in self._feedback])
        self._feedback = []
        if self._noise_met or maths.is_noise(phi, s.reject_threshold, s.noise_tolerance):
            self._noise_met, self._num_decoys = True, 0
            self._alphas = np.full(num_groups, s.noise_alpha)
            return
        results, decoy = maths.outcomes(phi, s.reject_threshold, s.clipped_below), groups == DECOY
        accepted = maths.accepted_groups(groups[~decoy], results[~decoy], num_groups, s.accepted_share)
        self._alphas = maths.tuned(self._alphas, accepted, view.rng, s.alpha_spread)
        most = len(view.malicious) - 1
        self._num_decoys = maths.tuned_decoys(self._num_decoys, results[~decoy], results[decoy], most)
