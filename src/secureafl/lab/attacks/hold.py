"""Hold: say something bad once and never change one's mind.

Written for this laboratory against filters that judge by change: an update equal to the sender's reference has a
Lipschitz factor of zero and passes whatever the threshold is.

    first contact:  m = -g, or the honest g
    afterwards:     m = the sender's reference at SecureAFL (g_i)

The opening is ours to choose: a frozen honest gradient only ages, a frozen reversed one pulls the model back for ever.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from secureafl.lab.attacks.attack import Stateless, View
from secureafl.settings import Settings
from secureafl.types import Vector


class HoldSettings(Settings):
    """Hold's settings."""

    opening: Literal["flipped", "honest"] = "flipped"
    """What is sent at first contact and repeated ever after: the reversed gradient or the honest one. [A]"""


class Hold(Stateless):
    """Repeats the reference that the server keeps."""

    def __init__(self, settings: HoldSettings = HoldSettings()) -> None:
        self.settings = settings

    def update(self, view: View) -> Vector:
        if view.client in view.shadow.history:
            return view.shadow.history.last_delta(view.client).copy()
        return np.negative(view.gradient) if self.settings.opening == "flipped" else view.gradient.copy()
