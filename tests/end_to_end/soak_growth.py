"""Whether something grows: the median of the last tenth of a series against that of its second tenth."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_SAMPLES = 60
"""Shorter series say nothing: a tenth of one is no more than a few samples."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much more than in its second tenth a series may be in its last."""

    factor: float = 1.0
    constant: float = 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """What became of one series."""

    name: str
    num_samples: int
    before: float
    """Median of the second tenth; the first one is for what is built up once."""
    after: float
    """Median of the last tenth."""
    allowed: float

    @property
    def grew(self) -> bool:
        return self.after > self.allowed

    def __str__(self) -> str:
        return f"{self.name}: {self.before:.4g} in the second tenth, {self.after:.4g} in the last of {self.allowed:.4g}"


def judge(name: str, series: Sequence[float], allowance: Allowance) -> Growth | None:
    """None if the series is too short to be judged."""
    if len(series) < MIN_SAMPLES:
        return None
    tenth = len(series) // 10
    before, after = statistics.median(series[tenth : 2 * tenth]), statistics.median(series[-tenth:])
    return Growth(name, len(series), before, after, allowance.factor * before + allowance.constant)
