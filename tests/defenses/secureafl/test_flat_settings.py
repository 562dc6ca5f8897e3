from typing import Any

import pytest

from secureafl import SecureAFLSettings
from secureafl.defenses import PAPER, PAPER_VARIANTS
from secureafl.errors import SettingsError


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"estimates": False, "lead": 0.5}, "lead = 0.5 does nothing with estimates = False"),
        ({"estimates": False, "bucket": 3}, "bucket = 3 does nothing with estimates = False"),
        ({"estimates": False, "opposition": 2.0}, "opposition = 2.0 does nothing with estimates = False"),
        ({"estimates": False, "alike": 0.4}, "alike = 0.4 does nothing with estimates = False"),
        ({"estimates": False, "exclude_after": 5}, "exclude_after = 5 does nothing with estimates = False"),
        ({"estimates": False, "aggregate": "mean"}, "aggregate = 'mean' does nothing with estimates = False"),
        ({"estimates": False, "correction": "bounded"}, "correction = 'bounded' does nothing with estimates = False"),
        ({"memory": 2}, "memory = 2 does nothing with correction = 'none'"),
        ({"refresh_interval": 9}, "refresh_interval = 9 does nothing with correction = 'none'"),
        ({"correction": "raw", "correction_bound": 1.0}, "correction_bound = 1.0 does nothing with correction = 'raw'"),
        ({"correction": "bounded", "calibration_decay": 0.5}, "calibration_decay = 0.5 does nothing with correction"),
        ({"trim": 0.1}, "trim = 0.1 does nothing with aggregate = 'running_mean'"),
        ({"estimates": False, "vouched": "a"}, "vouched = ('a',) does nothing with estimates = False"),
        ({"alike": None, "vouched": "a"}, "vouched = ('a',) does nothing without alike"),
        ({"against_consensus": None, "agreement_decay": 0.5}, "agreement_decay = 0.5 does nothing without against"),
        ({"bucket": 3}, "bucket = 3 does nothing with aggregate = 'running_mean', the default since 0.2"),
        ({"bucket": 1}, "bucket = 1 does nothing with aggregate = 'running_mean'"),
        ({"sketch_seed": 7}, "sketch_seed = 7 does nothing with aggregate = 'running_mean'"),
        ({"aggregate": "median", "alike": None, "sketch_seed": 7}, "sketch_seed = 7 does nothing without alike"),
        ({"aggregate": "median", "steps_per_interval": 1.0}, "steps_per_interval = 1.0 does nothing with aggregate"),
        ({"filter": "accept_all", "tolerance": 5.0}, "tolerance = 5.0 does nothing with filter = 'accept_all'"),
        (
            {"aggregate": "median", "alike": None, "opposition": None, "agreement_decay": 0.5},
            "agreement_decay = 0.5 does nothing without alike and opposition",
        ),
        (
            {"aggregate": "median", "history": "all"},
            "history = 'all' keeps updates as they came, max_change shortens them",
        ),
        (
            {"aggregate": "median", "correction": "raw", "memory": 0},
            "correction = 'raw' needs pairs to correct by: set memory to 1 or more",
        ),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        SecureAFLSettings(**settings)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("variant", PAPER_VARIANTS)
def test_the_paper_and_its_variants_are_taken_as_they_are(variant: str) -> None:
    changes: dict[str, Any] = dict(PAPER_VARIANTS[variant])
    assert SecureAFLSettings(**changes) == SecureAFLSettings(**SecureAFLSettings(**changes).model_dump())
    assert SecureAFLSettings.paper(**changes).percentile == PAPER["percentile"]


def test_a_setting_is_read_under_its_earlier_name() -> None:
    earlier: dict[str, Any] = {"silence_after": 5}
    assert SecureAFLSettings(**earlier) == SecureAFLSettings(exclude_after=5)
    with pytest.raises(SettingsError, match="exclude_after is given twice, once under its earlier name"):
        SecureAFLSettings(**earlier, exclude_after=5)


def test_what_0_1_recorded_is_read_without_what_changed_nothing() -> None:
    found = SecureAFLSettings.recorded(
        {"aggregate": "median", "memory": 5, "trim": 0.1, "alike": None, "sketch_seed": 9, "silence_after": 5}
    )
    assert found == SecureAFLSettings(aggregate="median", alike=None, exclude_after=5)
    with pytest.raises(SettingsError, match="max_change shortens them"):  # this changed something: it is not left out
        SecureAFLSettings.recorded({"aggregate": "median", "history": "all"})
