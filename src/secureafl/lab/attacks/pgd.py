"""PGD: train a backdoor without leaving a small ball around the model received.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan, "Can You Really Backdoor Federated Learning?", 2019; H. Wang et al.,
"Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS 2020.

    after each step:  x <- projection of x on { |x - w_b| <= rho }        so that |m| <= rho / eta

The ball is around the sender's base model, where the original has the previous round's. Its fixed radius (2 for
CIFAR-10) belongs to rounds of many local epochs; here rho = 2 eta times the median length of honest updates. The update
is not amplified.
"""

from __future__ import annotations

from pydantic import Field

from secureafl.lab.attacks.attack import Stateless, View, benign_norm, may_diverge, require_classes
from secureafl.lab.attacks.backdoor import BackdoorSettings, poisoned_gradient, project, train
from secureafl.types import Vector


class PGDSettings(BackdoorSettings):
    """PGD's settings."""

    num_steps: int = Field(5, ge=1)
    """Local steps E. [A]"""
    radius: float | None = Field(None, gt=0.0)
    """Largest |x - w_b|; None for `radius_factor` times the server's rate times the median honest length. [A]"""
    radius_factor: float = Field(2.0, gt=0.0)
    """How much longer than an honest update one may be, where `radius` is None. [A]"""
    project_every: int = Field(1, ge=1)
    """Steps between projections; the last step always projects. [A: published code uses 10]"""


def radius_sent(view: View, radius: float | None, factor: float) -> float:
    """rho / eta: the longest pseudo-gradient."""
    return factor * benign_norm(view) if radius is None else radius / view.server_lr


class PGD(Stateless):
    """A backdoor of honest length."""

    def __init__(self, settings: PGDSettings = PGDSettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        require_classes(view.task, "pgd")
        limit = radius_sent(view, self.settings.radius, self.settings.radius_factor)

        def constrain(sent: Vector, step: int) -> Vector:
            last = step == self.settings.num_steps - 1
            due = (step + 1) % self.settings.project_every == 0
            return project(sent, limit) if last or due else sent

        return train(view, self.settings, poisoned_gradient(view, self.settings.poison_fraction), constrain)
