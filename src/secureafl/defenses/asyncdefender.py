"""AsyncDefender-min: weigh each update by its likeness to the recent course of the model and by its sender's record.

Z. Bai et al., "AsyncDefender", 2025. Only its abstract could be had: similarity-weighted aggregation, collaborative
filtering, two-way credibility. What follows is a minimal form of our own; no ranking should be claimed from it.

    r = coordinate median of the first arrivals, then an exponential average of the applied steps
    c = cos(g, r),  c' = min(1, max(0, c) / running median of positive c)
    T_i = exponential average of c' (starting at 1),  nu = running median of received lengths
    step c' T_i g min(1, nu / |g|);  during the first arrivals: g min(1, nu / |g|)
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl import kernels
from secureafl.defenses.base import dot, norm, staleness
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict, refuse


class AsyncDefenderSettings(Settings):
    """AsyncDefender-min's settings, all ours. [A]"""

    num_first: int = Field(50, ge=1)
    """Arrivals whose median starts the reference; about one per client."""
    reference_decay: float = Field(0.9, ge=0.0, lt=1.0)
    """Weight left of the old reference after each applied step."""
    trust_decay: float = Field(0.9, ge=0.0, lt=1.0)
    """Weight left of a client's old trust after each of its arrivals."""


class AsyncDefender:
    """Keeps a reference direction, a trust per client, and the lengths and cosines seen so far."""

    def __init__(self, dim: int, settings: AsyncDefenderSettings = AsyncDefenderSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._first: Vector = np.empty((0, dim), np.float32)  # arrivals before there is a reference
        self._reference: Vector | None = None
        self._trust: dict[ClientId, float] = {}
        self._lengths: array[float] = array("d")
        self._cosines: array[float] = array("d")

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        length = norm(update.delta)
        insort(self._lengths, length)
        typical = _median(self._lengths)
        evidence = {"norm": length, "staleness": float(staleness(update, model)), "typical_norm": typical}
        shortened = update.delta * np.float32(min(1.0, typical / length)) if length > 0.0 else update.delta
        if self._reference is None:
            self._collect(update.delta)
            return Verdict(True, Reason.FIRST_CONTACT, shortened, evidence)
        evidence["cosine"] = cosine = self._cosine(update.delta, length)
        likeness = self._likeness(cosine)
        decay = self.settings.trust_decay
        trust = decay * self._trust.get(update.client, 1.0) + (1.0 - decay) * likeness
        self._trust[update.client] = evidence["trust"] = trust
        if likeness == 0.0:
            return refuse(Reason.AGAINST_REFERENCE, **evidence)
        direction = shortened * np.float32(likeness * trust)
        keep = np.float32(self.settings.reference_decay)
        self._reference = keep * self._reference + (np.float32(1.0) - keep) * direction
        return Verdict(True, Reason.ACCEPTED, direction, evidence)

    def state_dict(self) -> StateDict:
        return {
            "first": self._first.copy(),
            "reference": np.empty(0, np.float32) if self._reference is None else self._reference.copy(),
            "trust_clients": np.array(list(self._trust), np.int64),
            "trust": np.array(list(self._trust.values()), np.float64),
            "lengths": np.array(self._lengths, np.float64),
            "cosines": np.array(self._cosines, np.float64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._first = np.array(state["first"], np.float32)
        reference = np.array(state["reference"], np.float32)
        self._reference = reference if reference.size else None
        clients = map(ClientId, np.asarray(state["trust_clients"]).tolist())
        self._trust = dict(zip(clients, np.asarray(state["trust"]).tolist(), strict=True))
        self._lengths = array("d", np.asarray(state["lengths"]).tolist())
        self._cosines = array("d", np.asarray(state["cosines"]).tolist())

    def _collect(self, delta: Vector) -> None:
        self._first = np.concatenate([self._first, delta[None]])
        if len(self._first) == self.settings.num_first:
            self._reference = kernels.coordinate_median(self._first)
            self._first = np.empty((0, self._dim), np.float32)

    def _cosine(self, delta: Vector, length: float) -> float:
        assert self._reference is not None
        scale = length * norm(self._reference)
        return dot(delta, self._reference) / scale if scale > 0.0 else 0.0

    def _likeness(self, cosine: float) -> float:
        """c': a noisy gradient's cosine is small even when honest, so it is judged against the usual one."""
        if not cosine > 0.0:
            return 0.0
        insort(self._cosines, cosine)
        return min(1.0, cosine / _median(self._cosines))


def _median(ordered: array[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
