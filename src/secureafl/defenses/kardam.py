"""Kardam: accept an update whose empirical Lipschitz coefficient is among the smaller ones, from a client not heard
too often, and damp it by its staleness.

G. Damaskinos et al., "Asynchronous Byzantine Machine Learning (the case of SGD)", ICML 2018.

    K_p = |g - g_prev| / |w_base - w_prev|, refreshed at every update of client p
    Lipschitz filter:   accept iff the candidate's coefficient is at most the (n - f)/n quantile of all K_p
    frequency filter:   accept iff p is not among the last 2f accepted clients
    step:               Lambda(staleness) g

Departures: the published frequency rule ("any f clients give at most f of 2f + 1 consecutive updates") taken literally
deadlocks after early repeats, so its steady-state equivalent above is used; f is a share of the clients known so far,
since clients may join late; a client's first update has no coefficient and passes the Lipschitz filter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.defenses.base import norm, scoped, staleness, unscoped
from secureafl.defenses.lipschitz import lipschitz_factor
from secureafl.history import History
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Verdict, refuse

LAST_ACCEPTED = ClientId(-1)


class KardamSettings(Settings):
    """Kardam's settings. The published ones are marked [O], ours [A]."""

    malicious_fraction: float = Field(0.2, ge=0.0, lt=1.0)
    """Assumed share of malicious clients: f = floor(share * clients known). [A]"""
    candidate: Literal["own_previous", "last_accepted"] = "own_previous"
    """What the arriving update is compared with: the client's own previous update, or the last accepted update of
    anyone and the model it was applied to, as the authors' template does. [A]"""
    lipschitz_filter: bool = True
    """Whether the coefficient is tested. [O: yes]"""
    frequency_filter: bool = True
    """Whether a client is refused while it is among the last 2f accepted. [O: yes]"""
    dampening: Literal["inverse", "exponential", "none"] = "inverse"
    """Factor on the step: 1 / (1 + staleness), exp(-0.2 staleness), or none. [O: inverse]"""
    accept_after_rejections: int | None = Field(None, ge=1)
    """Let the next update pass after so many rejections in a row; None for never. [A]"""


class Kardam:
    """Remembers the last update of every client and the last accepted one."""

    def __init__(self, dim: int, settings: KardamSettings = KardamSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._previous = History(dim, memory=0, min_curvature=0.0, strict=True)
        self._accepted = History(dim, memory=0, min_curvature=0.0, strict=True)  # one entry: the last accepted update
        self._coefficients: dict[ClientId, float] = {}
        self._recent: deque[ClientId] = deque()
        self._num_rejected_in_row = 0

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        age = staleness(update, model)
        evidence = {"norm": norm(update.delta), "staleness": float(age)}
        self._refresh_coefficient(update)
        refused = self._refusal(update, model, evidence)
        patience = self.settings.accept_after_rejections
        if refused and not (patience is not None and self._num_rejected_in_row >= patience):
            self._num_rejected_in_row += 1
            return refuse(refused, **evidence)
        self._num_rejected_in_row = 0
        self._accepted.remember(LAST_ACCEPTED, update.delta, model.params)
        self._recent.append(update.client)
        evidence["dampening"] = factor = self._dampening(age)
        return Verdict(True, Reason.ACCEPTED, update.delta * np.float32(factor), evidence)

    @property
    def coefficients(self) -> Mapping[ClientId, float]:
        """K_p of every client heard twice."""
        return self._coefficients

    def state_dict(self) -> StateDict:
        return {
            **scoped("previous", self._previous.state_dict()),
            **scoped("accepted", self._accepted.state_dict()),
            "coefficient_clients": np.array(list(self._coefficients), np.int64),
            "coefficients": np.array(list(self._coefficients.values()), np.float64),
            "recent": np.array(self._recent, np.int64),
            "num_rejected_in_row": np.array(self._num_rejected_in_row, np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._previous.load_state_dict(unscoped("previous", state))
        self._accepted.load_state_dict(unscoped("accepted", state))
        clients = map(ClientId, np.asarray(state["coefficient_clients"]).tolist())
        self._coefficients = dict(zip(clients, np.asarray(state["coefficients"]).tolist(), strict=True))
        self._recent = deque(map(ClientId, np.asarray(state["recent"]).tolist()))
        self._num_rejected_in_row = int(np.asarray(state["num_rejected_in_row"], np.int64))

    def _refresh_coefficient(self, update: Update) -> None:
        if update.client in self._previous:
            change = self._previous.distances(update.client, update.delta, update.base.params)
            if change[1] > 0.0:  # on an unchanged model the old coefficient stands
                self._coefficients[update.client] = lipschitz_factor(*change)
        self._previous.remember(update.client, update.delta, update.base.params)

    def _refusal(self, update: Update, model: Model, evidence: dict[str, float]) -> Reason | None:
        num_malicious = math.floor(self.settings.malicious_fraction * len(self._previous))
        if self.settings.lipschitz_filter:
            evidence["lipschitz_factor"] = factor = self._candidate(update, model)
            evidence["threshold"] = threshold = self._threshold(num_malicious)
            if factor > threshold:
                return Reason.CHANGED_TOO_ABRUPTLY
        while len(self._recent) > 2 * num_malicious:
            self._recent.popleft()
        if self.settings.frequency_filter and update.client in self._recent:
            return Reason.TOO_FREQUENT
        return None

    def _candidate(self, update: Update, model: Model) -> float:
        if self.settings.candidate == "own_previous":
            return self._coefficients.get(update.client, 0.0)
        if LAST_ACCEPTED not in self._accepted:
            return 0.0
        return lipschitz_factor(*self._accepted.distances(LAST_ACCEPTED, update.delta, model.params))

    def _threshold(self, num_malicious: int) -> float:
        """The (N - f)-th smallest of N coefficients; infinite while there are no more than f."""
        ordered = sorted(self._coefficients.values())
        rank = len(ordered) - num_malicious
        return ordered[rank - 1] if rank >= 1 else math.inf

    def _dampening(self, age: int) -> float:
        if self.settings.dampening == "inverse":
            return 1.0 / (1.0 + age)
        return math.exp(-0.2 * age) if self.settings.dampening == "exponential" else 1.0
