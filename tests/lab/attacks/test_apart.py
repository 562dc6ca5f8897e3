import numpy as np
import pytest

from secureafl import ClientId
from secureafl.lab.attacks import PGD, Apart, ApartSettings
from secureafl.lab.attacks.apart import own_direction
from secureafl.lab.attacks.attack import length
from secureafl.testing.attack_views import view


def test_without_a_share_of_its_own_it_is_pgd() -> None:
    np.testing.assert_array_equal(Apart(ApartSettings(own_share=0.0)).update(view()), PGD().update(view()))


def test_a_share_of_the_squared_length_is_the_senders_own() -> None:
    seen = view()
    sent = Apart(ApartSettings(own_share=1.0)).update(seen)
    direction = own_direction(seen.client, 131)
    np.testing.assert_allclose(sent, length(PGD().update(view())) * direction, rtol=1e-5, atol=1e-9)


def test_two_colluders_are_less_alike_and_no_longer() -> None:
    dim = 100_000
    shared = np.random.default_rng(99).standard_normal(dim).astype(np.float32)
    shared /= np.float32(length(shared))
    half = np.float32(np.sqrt(0.5))
    first, second = (half * shared + half * own_direction(ClientId(k), dim) for k in (3, 4))
    assert float(first @ second) == pytest.approx(0.5, abs=0.02)
    assert length(first) == pytest.approx(1.0, abs=0.02)
    assert not np.array_equal(own_direction(ClientId(3), dim), own_direction(ClientId(4), dim))
