"""DBA: each malicious client learns a part of the trigger; together they teach the whole.

C. Xie, K. Huang, P.-Y. Chen, B. Li, "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020.

    malicious client of rank j trains with part j mod 4 of the trigger;  m = gamma (w_b - x) / eta

Success is measured with the whole trigger. The original's parts are four bars with gaps between; here they are the four
quadrants of the square. The original amplifies only when it attacks once; here gamma is as in Scaling.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View, may_diverge, rank, require_classes
from secureafl.lab.attacks.backdoor import BackdoorSettings, poisoned_gradient, train
from secureafl.lab.attacks.scaling import scale_of
from secureafl.types import Vector

NUM_PARTS = 4


class DBASettings(BackdoorSettings):
    """DBA's settings."""

    scale: float | None = Field(None, gt=0.0)
    """Factor gamma on the update; None for the number of clients. [A]"""


class DBA(Stateless):
    """Scaling with a quarter of the trigger."""

    def __init__(self, settings: DBASettings = DBASettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "dba")
        part = view.trigger.quadrant(rank(view) % NUM_PARTS)
        sent = train(view, self.settings, poisoned_gradient(view, self.settings.poison_fraction, part))
        return np.asarray(scale_of(view, self.settings.scale) * sent)
