"""SecureAFL written down once more, as literally as possible: lists, loops, float64, no Gram matrices.

The fast path is held against it. Stored vectors are float32, as the server keeps them.
"""

from __future__ import annotations

import numpy as np

from secureafl import ClientId, Model, SecureAFLSettings, Update, Vector
from secureafl.defenses.base import clip_to_norm
from secureafl.kernels import reference

Float = reference.Float


class LiteralSecureAFL:
    def __init__(self, settings: SecureAFLSettings) -> None:
        self.settings = settings
        self.references: dict[ClientId, tuple[Vector, Vector]] = {}
        self.pairs: dict[ClientId, list[tuple[Vector, Vector]]] = {}
        self.factors: list[float] = []
        self.agreement = self.prediction = 0.0
        self.changes: list[float] = []
        self.gaps: list[float] = []
        self.norms: list[float] = []
        self.median: Float | None = None
        self.averages: dict[ClientId, float] = {}
        self.counts: dict[ClientId, int] = {}
        self.opposing: set[ClientId] = set()
        self.asked: dict[ClientId, Float] = {}  # what each client keeps asking for
        self.num_asked: dict[ClientId, int] = {}
        self.alike: dict[ClientId, int] = {}
        self.num_heard = 0
        self.rejections: dict[ClientId, int] = {}
        self.num_arrivals = 0

    def step(self, update: Update, model: Model) -> tuple[bool, Float | None]:
        i, g, w_base = update.client, update.delta, update.base.params
        known, change = i in self.references, np.zeros(len(g))
        if not known:
            g, accepted = self.clip(g.astype(np.float64), self.limit(self.norms)).astype(np.float32), True
        else:
            accepted, longest, furthest = self.judge(i, g, w_base), self.limit(self.norms), self.limit(self.changes)
            g_ref, w_ref = self.references[i]
            change = g.astype(np.float64) - g_ref
            self.changes.append(float(np.linalg.norm(change)))
            self.gaps.append(float(np.linalg.norm(w_base.astype(np.float64) - w_ref)))
            if accepted:
                if self.settings.max_change is not None:
                    g = clip_to_norm(g, longest)  # rounded as the server does: pairs made of it are differences
                    g = g_ref + clip_to_norm(g - g_ref, furthest)
                change = (g - g_ref).astype(np.float64)
        self.norms.append(float(np.linalg.norm(update.delta.astype(np.float64))))
        smooth = accepted
        if accepted and self.settings.opposition is not None and self.median is not None:
            self.hear(i, update.delta.astype(np.float64))
            accepted = i not in self.opposing
        self.rejections[i] = 0 if accepted else self.rejections.get(i, 0) + 1
        if smooth and self.settings.alike is not None:
            self.compare(i, update.delta.astype(np.float64))
        out = self.absent()
        voters = [k for k in self.references if k != i and not self.silent(k) and k not in out]
        votes = [self.estimate(k, model.params) for k in voters]
        if accepted and i not in out:
            votes.append(g.astype(np.float64))
        direction = None
        if votes:
            self.median = direction = self.aggregate(self.bucketed(np.array(votes)))
            if accepted and known:
                direction = direction + self.settings.lead * change
        if smooth or self.settings.history == "all":
            self.remember(i, g, w_base, calibrate=accepted)
        self.num_arrivals += 1
        return accepted, direction

    def bucketed(self, votes: Float) -> Float:
        size = self.settings.bucket
        if size == 1:
            return votes
        shuffled = np.empty_like(votes)
        shuffled[np.random.Generator(np.random.Philox(key=self.num_arrivals)).permutation(len(votes))] = votes
        return np.array([shuffled[first : first + size].mean(axis=0) for first in range(0, len(votes), size)])

    def judge(self, i: ClientId, g: Vector, w_base: Vector) -> bool:
        g_ref, w_ref = self.references[i]
        gap = float(np.linalg.norm(w_base.astype(np.float64) - w_ref))
        if self.gaps:
            gap = float(np.hypot(gap, self.settings.gap_damping * self.middle(self.gaps)))
        change = np.linalg.norm(g.astype(np.float64) - g_ref)
        if gap == 0:
            if change > 0:
                return False
            factor = 0.0
        else:
            factor = float(change / gap)
        before = np.sort(self.recent(self.factors))
        self.factors.append(factor)
        place = int(self.settings.percentile * len(before))
        return len(before) == 0 or place == len(before) or factor <= self.settings.tolerance * before[place]

    def recent(self, values: list[float]) -> list[float]:
        return values if self.settings.window is None else values[-self.settings.window :]

    def middle(self, values: list[float]) -> float:
        recent = sorted(self.recent(values))
        return recent[len(recent) // 2]

    def limit(self, values: list[float]) -> float:
        if self.settings.max_change is None or not values:
            return self.settings.clip_norm
        return min(self.settings.clip_norm, self.settings.max_change * self.middle(values))

    def hear(self, i: ClientId, g: Float) -> None:
        assert self.median is not None
        cosine = float(g @ self.median / (np.linalg.norm(g) * np.linalg.norm(self.median)))
        count = self.counts[i] = self.counts.get(i, 0) + 1
        weight = max(1 / count, 1 - self.settings.agreement_decay)
        self.averages[i] = (1 - weight) * self.averages.get(i, 0.0) + weight * cosine
        heard = {k: v for k, v in self.averages.items() if self.counts[k] >= 2}
        if len(heard) >= 10:
            middle = np.median(list(heard.values()))
            spread = max(np.median([v - middle for v in heard.values() if v >= middle]), 0.05)
            limit = self.settings.opposition or 0.0
            self.opposing = {k for k, v in heard.items() if v < middle - spread * (0 if k in self.opposing else limit)}

    def compare(self, i: ClientId, g: Float) -> None:
        """Likeness of whole vectors: with fewer coordinates than a sketch has numbers, sketches lose nothing."""
        count = self.num_asked[i] = self.num_asked.get(i, 0) + 1
        weight = max(1 / count, 1 - self.settings.agreement_decay)
        self.asked[i] = (1 - weight) * self.asked.get(i, np.zeros_like(g)) + weight * g / np.linalg.norm(g)
        self.num_heard += 1
        if self.num_heard >= len(self.asked) >= 10:
            middle, self.num_heard = np.median(list(self.asked.values()), axis=0), 0
            own = {k: (v - middle) / np.linalg.norm(v - middle) for k, v in self.asked.items()}
            limit = self.settings.alike or 1.0
            self.alike = {k: sum(float(own[k] @ own[j]) > limit for j in own) for k in own}

    def absent(self) -> set[ClientId]:
        if not self.alike:
            return set()
        lots = np.random.Generator(np.random.Philox(key=[self.num_arrivals, 2])).random(len(self.alike))
        usual = np.median(list(self.alike.values()))
        return {k for (k, alike), lot in zip(self.alike.items(), lots, strict=True) if lot >= (usual / alike) ** 2}

    def silent(self, k: ClientId) -> bool:
        limit = self.settings.exclude_after
        return k in self.opposing or (limit is not None and self.rejections[k] >= limit)

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

    def clip(self, vector: Float, limit: float | None = None) -> Float:
        limit = self.settings.clip_norm if limit is None else limit
        return vector * min(1.0, limit / max(float(np.linalg.norm(vector)), 1e-300))

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
