"""Apart: PGD by colluders who take care not to be alike.

Written for this laboratory against defenses that weigh clients by how alike they are: FoolsGold, and SecureAFL with
`alike`. Every colluder spends a part of its update on a direction that nobody else has, always the same one, so that it
is still there when updates are averaged over time.

    m_i = sqrt(1 - s) m + sqrt(s) |m| r_i        m: PGD's update; r_i: the client's own direction, of length 1

The cosine of two colluders falls to 1 - s of what it was, and the backdoor's pull to sqrt(1 - s). The length, and how
little it changes from update to update, stay.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import View, length, may_diverge, require_classes
from secureafl.lab.attacks.pgd import PGD, PGDSettings
from secureafl.types import ClientId, Vector


class ApartSettings(PGDSettings):
    """PGD's settings, and one more."""

    own_share: float = Field(0.5, ge=0.0, le=1.0)
    """Share s of an update's squared length that lies along the sender's own direction. [A]"""


class Apart(PGD):
    """A backdoor of honest length whose senders have little else in common."""

    settings: ApartSettings

    def __init__(self, settings: ApartSettings = ApartSettings()) -> None:
        super().__init__(settings)

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "apart")
        sent, share = super().update(view), self.settings.own_share
        own = math.sqrt(share) * length(sent) * own_direction(view.client, len(sent))
        return np.asarray(math.sqrt(1.0 - share) * sent + own, np.float32)


def own_direction(client: ClientId, dim: int) -> Vector:
    """(d,) of length 1: a constant, which the client's number picks."""
    drawn = np.random.default_rng(client).standard_normal(dim, np.float32)
    return drawn / np.float32(length(drawn))
