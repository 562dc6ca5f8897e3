import numpy as np
import pytest

from secureafl import ClientId
from secureafl.lab.attacks import PGD, PGDSettings, Scaling, ScalingSettings
from secureafl.lab.attacks.attack import length
from secureafl.testing.attack_views import view


@pytest.mark.parametrize("project_every", [1, 2, 10])
@pytest.mark.parametrize("radius", [1e-4, 0.01, 0.05])
def test_model_stays_in_the_ball(radius: float, project_every: int) -> None:
    seen = view()
    sent = PGD(PGDSettings(radius=radius, project_every=project_every)).update(seen)
    assert length(sent.astype(np.float64) * seen.server_lr) <= radius


def test_inactive_for_a_large_radius() -> None:
    sent = PGD(PGDSettings(radius=1e6)).update(view())
    plain = Scaling(ScalingSettings(scale=1, num_steps=5)).update(view())
    np.testing.assert_array_equal(sent, plain)


def test_default_radius_is_twice_the_median_honest_length() -> None:
    rows = {ClientId(k): np.full(131, size, np.float32) for k, size in enumerate((0.001, 0.002, 50.0))}
    sent = PGD().update(view(updates=rows | {ClientId(9): np.full(131, 1e9, np.float32)}))
    assert length(sent) == pytest.approx(2 * 0.002 * np.sqrt(131), rel=1e-5)


def test_without_honest_updates_ones_own_gradient_is_the_measure() -> None:
    seen = view(updates={})
    sent = PGD(PGDSettings(radius_factor=0.5)).update(seen)
    assert length(sent) == pytest.approx(0.5 * length(seen.gradient), rel=1e-5)
