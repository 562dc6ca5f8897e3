"""Flood: answer at once, again and again, with one and the same vector.

G. Damaskinos, E. M. El Mhamdi, R. Guerraoui, R. Patra, M. Taziki, "Asynchronous Byzantine Machine Learning (the Case of
SGD)", ICML 2018, name the danger: whoever waits for nobody also cannot stop one worker from speaking all the time. The
attack itself is ours.

    m = -scale L g_0 / |g_0|        g_0: the sender's first honest gradient; L: the usual length, as known then

A malicious client takes a share `job_duration` of the usual client's time, so it arrives 1 / `job_duration` times as
often: with 0.01 and one such client of fifty, two arrivals of three are its own. What never changes passes every test
of how abruptly a client changes. One flooding client is a strong attacker already: set `malicious_fraction` so.

The repeated vector may also be honest (`opening`). It was right for the first model, and is followed beyond the goal
by a server that counts it each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import View, benign_norm, length, may_diverge
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, StateDict, Vector


class FloodSettings(Settings):
    """Flood's settings."""

    job_duration: float = Field(0.01, gt=0.0, le=1.0)
    """Time that a malicious client takes for an answer, in units of the usual client's. [A]"""
    opening: Literal["flipped", "honest"] = "flipped"
    """What is repeated: the sender's first honest gradient, reversed or as it is. [A]"""
    scale: float = Field(1.0, gt=0.0)
    """How many times as long as is usual. [A]"""


class Flood:
    """Sends what it sent first, as often as it can."""

    def __init__(self, settings: FloodSettings = FloodSettings()) -> None:
        self.settings = settings
        self._repeated: dict[ClientId, Vector] = {}

    @property
    def job_duration(self) -> float:
        return self.settings.job_duration

    @may_diverge
    def update(self, view: View) -> Vector:
        if view.client not in self._repeated:
            sign = -1.0 if self.settings.opening == "flipped" else 1.0
            size, usual = length(view.gradient), benign_norm(view)
            if not np.isfinite(size * usual) or size * usual == 0.0:
                return np.asarray(np.float32(sign) * view.gradient)  # no direction to repeat yet
            scale = sign * self.settings.scale * usual / size
            self._repeated[view.client] = np.asarray(scale * view.gradient, np.float32)
        return self._repeated[view.client].copy()

    def observe(self, model: Model) -> None:
        """Learn nothing."""

    def state_dict(self) -> StateDict:
        rows = list(self._repeated.values())
        return {
            "clients": np.array(list(self._repeated), np.int64),
            "rows": np.stack(rows) if rows else np.empty((0, 0), np.float32),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients, rows = np.asarray(state["clients"]).tolist(), np.asarray(state["rows"], np.float32)
        self._repeated = {ClientId(client): row.copy() for client, row in zip(clients, rows, strict=True)}
