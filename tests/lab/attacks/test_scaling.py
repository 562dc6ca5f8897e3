import numpy as np
import pytest

from secureafl.lab.attacks import Scaling, ScalingSettings
from secureafl.testing.attack_views import view


@pytest.mark.parametrize("num_steps", [1, 3])
def test_linear_in_gamma(num_steps: int) -> None:
    once, thrice = (Scaling(ScalingSettings(scale=s, num_steps=num_steps)).update(view()) for s in (1.0, 3.0))
    np.testing.assert_array_equal(thrice, np.float32(3) * once)


def test_gamma_one_without_poison_is_honest() -> None:
    seen = view()
    np.testing.assert_array_equal(Scaling(ScalingSettings(scale=1, poison_fraction=0)).update(seen), seen.gradient)


def test_default_gamma_is_the_number_of_clients() -> None:
    default, tenfold = (Scaling(s).update(view()) for s in (ScalingSettings(), ScalingSettings(scale=10)))
    np.testing.assert_array_equal(default, tenfold)


def test_poison_changes_the_update() -> None:
    seen = view()
    assert (Scaling(ScalingSettings(scale=1)).update(seen) != seen.gradient).any()
