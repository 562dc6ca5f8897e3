"""Nothing a run computes changes unless somebody means it: every arrival of the golden records, bit for bit.

Where this machine's libraries round otherwise than those of the machine that made the records, reasons must still be
equal and the model close.
"""

import json

import numpy as np
import pytest
from tests.golden.scenario import CONFIGURATIONS, RECORDS, Record, play, rounding

from secureafl.defenses.secureafl.formats import renamed_key
from secureafl.server.record.entries import RENAMED_REASONS


def test_every_configuration_has_a_record_and_every_record_a_configuration() -> None:
    assert {path.stem for path in RECORDS.glob("*.json")} == set(CONFIGURATIONS)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_record_is_repeated(configuration: str) -> None:
    expected = Record(**json.loads((RECORDS / f"{configuration}.json").read_text()))
    expected.arrivals = [in_todays_words(line) for line in expected.arrivals]
    found = play(configuration)
    if rounding() != expected.rounding:
        assert [line.split()[1] for line in found.arrivals] == [line.split()[1] for line in expected.arrivals]
        assert found.sample == pytest.approx(expected.sample, rel=1e-3, abs=1e-4)
        return
    for number, (now, then) in enumerate(zip(found.arrivals, expected.arrivals, strict=True)):
        assert now == then, f"arrival {number}"
    assert found.evidence == expected.evidence
    assert found.sample == expected.sample
    is_ours = CONFIGURATIONS[configuration][0] == "secureafl"
    saved = {today(key) if is_ours else key: value for key, value in expected.state.items()}
    newer = {f"defense.{key}" for key in NEWER}
    kept = {key: value for key, value in found.state.items() if key not in newer}
    assert kept == {key: value for key, value in saved.items() if key in kept}
    assert {key.removeprefix("defense.") for key in saved.keys() - found.state.keys()} <= UNREAD


def in_todays_words(line: str) -> str:
    model, reason = line.split()
    return f"{model} {RENAMED_REASONS.get(reason, reason)}"


UNREAD = {
    *("change.recent", "change.sorted", "length.recent", "length.sorted"),  # without max_change
    "streaks.rejections",  # without exclude_after
    *("estimate.calibration", "estimate.gaps.age", "estimate.gaps.params", "estimate.gaps.products"),  # no correction
}
"""What 0.1.0 saved in every configuration, and read in some."""


NEWER = {
    *("combine.voters", "combine.num_lots"),  # change nothing while there are fewer clients than may vote
    *("beginning.clients", "beginning.lengths", "beginning.gone", "beginning.phase"),  # over after three clients
}
"""What is saved since the records were made."""


def today(key: str) -> str:
    """The present name of what 0.1.0 saved."""
    return f"defense.{renamed_key(key.removeprefix('defense.'))}" if key.startswith("defense.") else key


def test_the_records_tell_configurations_apart() -> None:
    models = [json.loads((RECORDS / f"{name}.json").read_text())["arrivals"][-1] for name in CONFIGURATIONS]
    same = {("secureafl", "secureafl-float16")}  # half precision of what is not corrected changes nothing early on
    assert len(set(models)) >= len(CONFIGURATIONS) - len(same)
    assert np.isfinite(json.loads((RECORDS / "secureafl.json").read_text())["sample"]).all()
