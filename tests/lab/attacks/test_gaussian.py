import numpy as np
import pytest

from secureafl.lab.attacks import Gaussian, GaussianSettings
from secureafl.testing.attack_views import view


@pytest.mark.parametrize("std", [200.0, 0.5])
def test_moments(std: float) -> None:
    seen, attack = view(), Gaussian(GaussianSettings(std=std))
    noise = np.concatenate([attack.update(seen) for _ in range(800)])
    standard = noise.astype(np.float64) / std
    sigmas = 4 / np.sqrt(len(standard))
    assert abs(standard.mean()) < sigmas
    assert abs((standard**2).mean() - 1) < sigmas * np.sqrt(2)  # var z^2 = 2
    assert abs((standard**3).mean()) < sigmas * np.sqrt(15)  # var z^3 = 15
    assert abs((standard**4).mean() - 3) < sigmas * np.sqrt(96)  # var z^4 = 96


def test_noise_comes_from_the_attacks_own_stream() -> None:
    same = [Gaussian().update(view(rng=np.random.default_rng(4))) for _ in range(2)]
    other = Gaussian().update(view(rng=np.random.default_rng(5)))
    np.testing.assert_array_equal(same[0], same[1])
    assert (same[0] != other).all()
    assert same[0].dtype == np.float32
