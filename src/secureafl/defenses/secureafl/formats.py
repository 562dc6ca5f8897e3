"""Names under which earlier versions saved the state, so that their runs go on."""

from __future__ import annotations

from collections.abc import Mapping

from secureafl.types import Array, StateDict

SINCE_0_2: Mapping[str, str] = {
    "log.": "filter.factors.",
    "typical_gaps.": "filter.gaps.",
    "norms.": "length.",
    "changes.": "change.",
    "agreement.median": "direction",
    "agreement.": "consensus.",
    "likeness.": "groups.",
    "rejections": "streaks.rejections",
    "history.": "estimate.history.",
    "gaps.": "estimate.gaps.",
    "calibration": "estimate.calibration",
}
"""How keys of 0.1.0 begin, and how the same are called now. The first that fits counts."""


def renamed(state: Mapping[str, Array]) -> StateDict:
    """The state under the names of this version."""
    if "log.sorted" not in state:
        return dict(state)
    return {renamed_key(key): value for key, value in state.items()}


def renamed_key(key: str) -> str:
    """The present name of something that 0.1.0 saved."""
    old = next((old for old in SINCE_0_2 if key.startswith(old)), None)
    return key if old is None else SINCE_0_2[old] + key.removeprefix(old)
