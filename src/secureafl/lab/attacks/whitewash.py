"""Whitewash: come back under a new name whenever the old one has a past.

J. R. Douceur, "The Sybil Attack", IPTPS 2002: without someone who vouches for identities, one adversary has as many as
it likes. M. Feldman, C. Papadimitriou, J. Chuang, I. Stoica, "Free-Riding and Whitewashing in Peer-to-Peer Systems",
IEEE JSAC 2006: names that cost nothing wash off every bad record. The update is ours:

    m = -scale (sqrt(1 - s) g + sqrt(s) |g| r)        g: the honest gradient; r: drawn anew each time, of length 1

A server that trusts a client it has not heard of more than one that it has rejected is moved by every one of them. The
random part keeps the names from being alike. No name ever has a reference to be measured by, or a reputation to lose.

Every name costs the server memory, as much as an honest client does: mind the number of rounds.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View, length, may_diverge
from secureafl.settings import Settings
from secureafl.types import Vector, Verdict


class WhitewashSettings(Settings):
    """Whitewash's settings."""

    leave: Literal["always", "rejected"] = "always"
    """When a malicious client takes a new name: after each of its updates, or after one that was not accepted. [A]"""
    scale: float = Field(1.0, gt=0.0)
    """How many times as long as the honest gradient. [A]"""
    random_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share s of an update's squared length that is random. [A]"""


class Whitewash(Stateless):
    """The reversed gradient, each time from someone else."""

    def __init__(self, settings: WhitewashSettings = WhitewashSettings()) -> None:
        self.settings = settings

    def leaves_name(self, verdict: Verdict) -> bool:
        return self.settings.leave == "always" or not verdict.accepted

    @may_diverge
    def update(self, view: View) -> Vector:
        share, drawn = self.settings.random_share, view.rng.standard_normal(len(view.gradient), np.float32)
        noise = math.sqrt(share) * length(view.gradient) / length(drawn) * drawn
        return np.asarray(-self.settings.scale * (math.sqrt(1.0 - share) * view.gradient + noise), np.float32)
