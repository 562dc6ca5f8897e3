"""SecureAFL written down once more, as literally as possible: lists, loops, float64, no Gram matrices.

The fast path is held against it. Stored vectors are float32, as the server keeps them.
"""

from __future__ import annotations

import numpy as np

from secureafl import ClientId, Model, SecureAFLSettings, Update, Vector
from secureafl.kernels import reference

Float = reference.Float


class LiteralSecureAFL:
    def __init__(self, settings: SecureAFLSettings) -> None:
        self.settings = settings
        self.references: dict[ClientId, tuple[Vector, Vector]] = {}
        self.pairs: dict[ClientId, list[tuple[Vector, Vector]]] = {}
        self.factors: list[float] = []
        self.agreement = self.prediction = 0.0

    def step(self, update: Update, model: Model) -> tuple[bool, Float | None]:
        i, g, w_base = update.client, update.delta, update.base.params
        if i not in self.references:
            g, accepted = self.clip(g.astype(np.float64)).astype(np.float32), True
        else:
            accepted = self.judge(i, g, w_base)
        votes = [self.estimate(k, model.params) for k in self.references if k != i]
        if accepted:
            votes.append(g.astype(np.float64))
        if accepted or self.settings.history == "all":
            self.remember(i, g, w_base, calibrate=accepted)
        return accepted, self.aggregate(np.array(votes)) if votes else None

    def judge(self, i: ClientId, g: Vector, w_base: Vector) -> bool:
        g_ref, w_ref = self.references[i]
        gap = np.linalg.norm(w_base.astype(np.float64) - w_ref)
        change = np.linalg.norm(g.astype(np.float64) - g_ref)
        if gap == 0:
            if change > 0:
                return False
            factor = 0.0
        else:
            factor = float(change / gap)
        self.factors.append(factor)
        return factor <= reference.percentile(np.array(self.factors), self.settings.percentile)

    def correction(self, k: ClientId, params: Vector) -> Float:
        """The Hessian product before calibration, bounded if the settings say so."""
        g_ref, w_ref = self.references[k]
        gap = params.astype(np.float64) - w_ref
        if self.settings.correction == "none" or not self.pairs[k]:
            return np.zeros_like(gap)
        s = np.stack([pair[0] for pair in self.pairs[k]], axis=1).astype(np.float64)
        y = np.stack([pair[1] for pair in self.pairs[k]], axis=1).astype(np.float64)
        product = reference.hessian_product(s, y, gap)
        if self.settings.correction == "raw":
            return product
        limit = self.settings.correction_bound * float(np.linalg.norm(g_ref.astype(np.float64)))
        return product * min(1.0, limit / max(float(np.linalg.norm(product)), 1e-300))

    def estimate(self, k: ClientId, params: Vector) -> Float:
        share = 1.0
        if self.settings.correction == "calibrated":
            share = float(np.clip(self.agreement / self.prediction, 0, 1)) if self.prediction > 0 else 0.0
        return self.clip(self.references[k][0] + share * self.correction(k, params))

    def clip(self, vector: Float) -> Float:
        return vector * min(1.0, self.settings.clip_norm / max(float(np.linalg.norm(vector)), 1e-300))

    def aggregate(self, votes: Float) -> Float:
        if self.settings.aggregate == "median":
            return reference.coordinate_median(votes)
        if self.settings.aggregate == "trimmed_mean":
            return reference.trimmed_mean(votes, int(self.settings.trim * len(votes)))
        return reference.mean(votes)

    def remember(self, i: ClientId, g: Vector, w_base: Vector, *, calibrate: bool) -> None:
        if i in self.references:
            g_ref, w_ref = self.references[i]
            if calibrate:
                predicted = self.correction(i, w_base)
                real = g.astype(np.float64) - g_ref
                decay = self.settings.calibration_decay
                unit = max(float(real @ real), float(g_ref.astype(np.float64) @ g_ref))
                if unit > 0:
                    self.agreement = decay * self.agreement + float(real @ predicted) / unit
                    self.prediction = decay * self.prediction + float(predicted @ predicted) / unit
            s, y = w_base - w_ref, g - g_ref
            s_norm, y_norm = (np.linalg.norm(x.astype(np.float64)) for x in (s, y))
            if s_norm > 0 and s.astype(np.float64) @ y > self.settings.min_curvature * s_norm * y_norm:
                self.pairs[i] = [*self.pairs[i], (s, y)][-self.settings.memory :]
        else:
            self.pairs[i] = []
        self.references[i] = (g.copy(), w_base.copy())
