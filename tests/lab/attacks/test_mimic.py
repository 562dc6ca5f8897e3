import math

import numpy as np
import pytest

from secureafl import ClientId
from secureafl.lab.attacks import PGD, Mimic, MimicSettings
from secureafl.lab.attacks.attack import Watches, length
from secureafl.lab.attacks.mimic import blended
from secureafl.testing.attack_views import benign_rows, view
from secureafl.types import Vector


def informed(**settings: object) -> Mimic:
    """Has seen one update of every honest client."""
    attack = Mimic(MimicSettings(**settings))  # type: ignore[arg-type]
    assert isinstance(attack, Watches)
    for client, row in benign_rows(131).items():
        attack.watch(client, row)
    return attack


def cosine(one: Vector, other: Vector) -> float:
    return float(one @ other) / (length(one) * length(other))


def test_blending_by_hand() -> None:
    wanted, copied = np.array([3, 0, 0], np.float32), np.array([0, 1, 0], np.float32)
    np.testing.assert_allclose(blended(wanted, copied, 0.5), [math.sqrt(4.5), math.sqrt(4.5), 0], rtol=1e-6)
    np.testing.assert_allclose(blended(wanted, copied, 0.25), [3 * math.sqrt(0.75), 1.5, 0], rtol=1e-6)
    np.testing.assert_array_equal(blended(wanted, np.array([-1, 0, 0], np.float32), 0.5), wanted)  # they cancel out


def test_without_a_copied_share_it_is_pgd() -> None:
    np.testing.assert_allclose(informed(copied_share=0.0).update(view()), PGD().update(view()), rtol=1e-5)


def test_each_colluder_copies_another_client() -> None:
    attack, rows = informed(copied_share=1.0), benign_rows(131)
    for place, client in enumerate((7, 8, 9)):  # their victims are 0, 1 and 2
        sent = attack.update(view(client=ClientId(client)))
        assert cosine(sent, rows[ClientId(place)]) == pytest.approx(1.0, abs=1e-5)
        assert length(sent) == pytest.approx(length(PGD().update(view(client=ClientId(client)))), rel=1e-5)


def test_what_is_copied_is_the_average_of_directions() -> None:
    attack = informed(copied_share=1.0)
    more = np.random.default_rng(4).normal(size=131).astype(np.float32)
    attack.watch(ClientId(1), more)  # client 8's victim
    first = benign_rows(131)[ClientId(1)]
    average = first / length(first) + more / length(more)
    assert cosine(attack.update(view()), average) == pytest.approx(1.0, abs=1e-5)


def test_the_rest_is_the_goal() -> None:
    attack, seen = informed(goal="reverse", copied_share=0.5), view()
    sent, victim = attack.update(seen), benign_rows(131)[ClientId(1)]
    half = math.sqrt(0.5)
    expected = half * victim / length(victim) - half * seen.gradient / length(seen.gradient)
    assert cosine(sent, expected) == pytest.approx(1.0, abs=1e-5)
    assert length(sent) == pytest.approx(length(seen.gradient), rel=1e-5)


def test_who_does_not_know_its_victim_is_honest() -> None:
    seen = view()
    np.testing.assert_array_equal(Mimic().update(seen), seen.gradient)
