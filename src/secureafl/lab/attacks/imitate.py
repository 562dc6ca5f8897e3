"""Imitate: be like a few honest clients, so that a test for colluders takes their votes away.

S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022, copy
an honest worker so that it is over-counted. Here it is the other way round: a defense that limits the votes of clients
who are alike takes the victim for one of the colluders. Nothing that is sent is wrong; what only the victim knows is
lost. Ours:

    m = |u_v| (sqrt(1 - s) a_v + sqrt(s) r)

    a_v: the running average of the victim's directions, of length 1; |u_v|: the length of its last update;
    r: drawn anew each time, of length 1

The noise fades over time, as the victim's own does, and what the colluders keep asking for is what the victim does.

Victims are those honest clients whose average is least like the sum of the others', where a loss harms most. They are
chosen once, after `choose_after` arrivals per client; until then the colluders are honest. Several victims are given to
the colluders in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Float, View, length, may_diverge, rank
from secureafl.lab.attacks.long_run import LongRun
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, StateDict, Vector


class ImitateSettings(Settings):
    """Imitate's settings."""

    num_victims: int = Field(1, ge=1)
    """How many honest clients are imitated. [A]"""
    noise_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share s of an update's squared length that is noise. [A]"""
    choose_after: float = Field(10.0, ge=0.0)
    """Arrivals per client until victims are chosen. [A]"""
    decay: float = Field(0.95, ge=0.0, lt=1.0)
    """Weight left of a client's average after its next update. [A]"""


class Imitate:
    """Noisy copies of what a few clients keep asking for."""

    def __init__(self, settings: ImitateSettings = ImitateSettings()) -> None:
        self.settings = settings
        self._long_run = LongRun(settings.decay)
        self._victims: list[ClientId] = []

    def watch(self, client: ClientId, update: Vector) -> None:
        self._long_run.take(client, update)

    @may_diverge
    def update(self, view: View) -> Vector:
        if not self._victims and view.round >= self.settings.choose_after * view.num_clients:
            self._victims = least_alike(self._long_run, self.settings.num_victims)
            if self._victims:
                self._long_run.keep(self._victims)
        if not self._victims:
            return view.gradient.copy()
        victim = self._victims[rank(view) % len(self._victims)]
        direction, share = self._long_run.direction(victim), self.settings.noise_share
        if direction is None:
            return view.gradient.copy()
        drawn = view.rng.standard_normal(len(direction), np.float32)
        noise = math.sqrt(share) / length(drawn) * drawn
        size = length(view.updates[victim])
        return np.asarray(size * (math.sqrt(1.0 - share) * direction + noise), np.float32)

    def observe(self, model: Model) -> None:
        """Learn nothing."""

    def state_dict(self) -> StateDict:
        return {**self._long_run.state_dict(), "victims": np.array(self._victims, np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._long_run.load_state_dict(state)
        self._victims = [ClientId(client) for client in np.asarray(state["victims"]).tolist()]


def least_alike(long_run: LongRun, num: int) -> list[ClientId]:
    """The clients whose direction has the smallest cosine with the sum of the others'; the least alike first."""
    directions = {client: long_run.direction(client) for client in long_run.clients}
    known = {client: direction for client, direction in directions.items() if direction is not None}
    if not known:
        return []
    total: Float = np.sum(list(known.values()), axis=0, dtype=np.float64)

    def likeness(client: ClientId) -> float:
        others = total - known[client]
        size = length(others)
        return float(known[client] @ others) / size if size > 0.0 else 0.0

    return sorted(known, key=likeness)[:num]
