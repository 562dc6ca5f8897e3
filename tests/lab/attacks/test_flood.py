from pathlib import Path

import numpy as np
import pytest
from tests.lab.tiny import tiny_cell

from secureafl import ClientId, Model
from secureafl.lab.attacks import Flood, FloodSettings
from secureafl.lab.attacks.attack import ChoosesPace, length
from secureafl.lab.cells.build import build
from secureafl.testing.attack_views import benign_rows, view


def test_the_first_gradient_is_reversed_and_repeated_at_the_usual_length() -> None:
    attack, seen = Flood(), view()
    usual = float(np.median([length(row) for row in benign_rows(131).values()]))
    first = attack.update(seen)
    np.testing.assert_allclose(first, -seen.gradient * (usual / length(seen.gradient)), rtol=1e-5)
    later = view(base=Model(9, seen.base.params + 1), updates={})
    np.testing.assert_array_equal(attack.update(later), first)
    other = attack.update(view(client=ClientId(7), base=later.base))
    assert (other != first).any()  # each client repeats its own


def test_an_honest_opening_is_repeated_as_it_is() -> None:
    seen = view(updates={})  # no one else is known: the usual length is its own
    sent = Flood(FloodSettings(opening="honest", scale=3.0)).update(seen)
    np.testing.assert_allclose(sent, 3.0 * seen.gradient, rtol=1e-5)


@pytest.mark.parametrize("protocol", ["paper", "virtual-time"])
def test_its_client_arrives_far_more_often(protocol: str, tiny_source: Path) -> None:
    cell = tiny_cell(
        tiny_source,
        attack="flood",
        malicious_fraction=0.125,
        attack_settings={"job_duration": 0.05},
        defense="asyncsgd",
        protocol=protocol,
    )
    lab = build(cell)
    assert lab.simulation.attacker is not None
    assert isinstance(lab.simulation.attacker.attack, ChoosesPace)
    for _ in range(60):
        lab.simulation.step()
    [flooding] = lab.malicious
    count = int(np.sum(lab.simulation.trace.columns()["client"] == flooding))
    assert count == pytest.approx(60 * 20 / 27, abs=12)  # twenty answers while each of seven others gives one
