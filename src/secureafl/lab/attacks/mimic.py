"""Mimic: colluders of whom each is half someone else.

S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", ICLR 2022, have
an attack of this name. There all colluders send exact copies of one honest worker's update, chosen to be over-counted;
nothing they send is wrong, and the harm is that the others count for less. Ours has a goal beside the copy, each
colluder copies another client, and what it copies is that client's long-run direction:

    m_i = |m| u / |u|,   u = sqrt(1 - s) m / |m| + sqrt(s) a_v(i)

    m: PGD's update, or the reversed gradient; a_v(i): the running average of its victim's directions, of length 1

It is `apart` against defenses that compare clients with third ones. A private direction of one's own is like nobody's,
and shows by that; an honest client's direction is as like the others' as an honest client is. Victims are the first
honest clients by number, one for each colluder, in turn if there are too few. A colluder whose victim was not heard of
yet sends its honest gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import View, length, may_diverge, rank, require_classes
from secureafl.lab.attacks.long_run import LongRun
from secureafl.lab.attacks.pgd import PGD, PGDSettings
from secureafl.types import Array, ClientId, StateDict, Vector


class MimicSettings(PGDSettings):
    """PGD's settings, and three more."""

    goal: Literal["backdoor", "reverse"] = "backdoor"
    """What the rest of an update is for: PGD's backdoor, or the reversed gradient. [A]"""
    copied_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share s of an update's squared length that copies another client, before both parts are added. [A]"""
    decay: float = Field(0.95, ge=0.0, lt=1.0)
    """Weight left of a victim's average after its next update. [A]"""


class Mimic(PGD):
    """A backdoor whose senders have their directions from honest clients."""

    settings: MimicSettings

    def __init__(self, settings: MimicSettings = MimicSettings()) -> None:
        super().__init__(settings)
        self._long_run = LongRun(settings.decay)

    def watch(self, client: ClientId, update: Vector) -> None:
        self._long_run.take(client, update)

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "mimic")
        victims = [ClientId(client) for client in range(view.num_clients) if client not in view.malicious]
        self._long_run.keep(victims[: len(view.malicious)])
        copied = self._long_run.direction(victims[rank(view) % len(victims)])
        if copied is None:
            return view.gradient.copy()
        wanted = super().update(view) if self.settings.goal == "backdoor" else np.negative(view.gradient)
        return blended(wanted, copied, self.settings.copied_share)

    def state_dict(self) -> StateDict:
        return self._long_run.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._long_run.load_state_dict(state)


def blended(wanted: Vector, copied: Vector, share: float) -> Vector:
    """As long as `wanted`; of its direction and `copied`, which has length 1, each its share of squared length."""
    size = length(wanted)
    if not np.isfinite(size) or size == 0.0:
        return wanted
    mixed = math.sqrt(1.0 - share) / size * wanted.astype(np.float64) + math.sqrt(share) * copied
    total = length(mixed)
    return np.asarray(mixed * (size / total), np.float32) if total > 0.0 else wanted
