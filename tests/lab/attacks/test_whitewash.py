from pathlib import Path

import numpy as np
import pytest
from tests.lab.tiny import tiny_cell

from secureafl.lab.attacks import Whitewash, WhitewashSettings
from secureafl.lab.attacks.attack import ChangesNames, length
from secureafl.lab.cells.experiment import RunSettings, run_cell
from secureafl.server.record.run import repeat
from secureafl.server.review.opened import RecordedRun
from secureafl.testing.attack_views import view
from secureafl.types import Reason, Verdict

ACCEPTED, REJECTED = Verdict(True, Reason.ACCEPTED, None, {}), Verdict(False, Reason.CHANGED_TOO_ABRUPTLY, None, {})


def test_without_a_random_share_it_is_the_reversed_gradient() -> None:
    seen = view()
    np.testing.assert_array_equal(
        Whitewash(WhitewashSettings(random_share=0.0, scale=2.0)).update(seen), -2 * seen.gradient
    )


def test_all_of_a_random_update_is_as_long_as_the_gradient() -> None:
    seen = view()
    sent = Whitewash(WhitewashSettings(random_share=1.0)).update(seen)
    assert length(sent) == pytest.approx(length(seen.gradient), rel=1e-5)
    assert abs(sent @ seen.gradient) < 0.5 * length(seen.gradient) ** 2


def test_when_a_name_is_left() -> None:
    always, rejected = Whitewash(), Whitewash(WhitewashSettings(leave="rejected"))
    assert isinstance(always, ChangesNames)
    assert [always.leaves_name(verdict) for verdict in (ACCEPTED, REJECTED)] == [True, True]
    assert [rejected.leaves_name(verdict) for verdict in (ACCEPTED, REJECTED)] == [False, True]


@pytest.mark.parametrize("protocol", ["paper", "virtual-time"])
def test_every_update_is_someone_elses_and_the_record_can_be_repeated(
    protocol: str, tiny_source: Path, tmp_path: Path
) -> None:
    cell = tiny_cell(tiny_source, attack="whitewash", protocol=protocol)
    result = run_cell(cell, tmp_path, run=RunSettings(record=tmp_path / "run"))
    sent = result["detection"]["num_malicious"]
    assert sent > 2
    assert result["num_names"] == 8 + sent
    assert len(result["detection"]["acceptance_by_client"]) == 8
    assert result["reasons"]["malicious"]["first-contact"] == sent  # none has a past
    run = RecordedRun.open(tmp_path / "run")
    machine = run.machine()
    for entry in run.journal.entries(payloads=True):
        repeat(machine, entry, "replay")  # checks the model's hash at every arrival
    run.journal.close()
