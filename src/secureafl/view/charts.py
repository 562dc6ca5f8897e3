"""What is drawn of a run: a bounded number of intervals and points, however long it is.

Shapes: b = intervals, p = points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from secureafl.view.arrivals import Integers, Numbers, Table

MAX_INTERVALS = 120
MAX_POINTS = 800
"""Of each kind, accepted and rejected."""
LOG_SPAN = 10.0
"""Measures and thresholds that differ by more than this factor are drawn on a logarithmic axis."""

Along = Literal["time", "updates"]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Columns (b,) over equal spans of time, or of arrivals; NaN where nothing came."""

    width: float
    """In seconds, or in arrivals."""
    middle: Numbers
    """Of each span."""
    accepted: Numbers
    rejected: Numbers
    rate: Numbers
    staleness: Numbers
    max_staleness: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Columns (p,): single arrivals, thinned out evenly if there are many."""

    version: Integers
    seconds: Numbers
    accepted: Numbers
    """The measure of accepted arrivals, NaN for the others."""
    rejected: Numbers
    """The measure of rejected arrivals, NaN for the others."""
    threshold: Numbers
    every: tuple[int, int]
    """One of so many accepted and of so many rejected arrivals is drawn."""
    not_finite: int
    """Arrivals that have a measure which cannot be drawn."""
    unmeasured: int
    """Arrivals that have no measure."""
    logarithmic: bool


def intervals(table: Table, along: Along = "time", max_intervals: int = MAX_INTERVALS) -> Intervals:
    """Arrivals gathered along time or their own count. Widths are round, so that they change seldom as a run grows."""
    position = table.seconds if along == "time" else np.arange(len(table), dtype=np.float64)
    end = float(position[-1]) if len(table) else 0.0
    width = round_width(end / max_intervals, least=0.1 if along == "time" else 1.0)
    places = (position / width).astype(np.int64)
    count = int(places[-1]) + 1 if len(table) else 0
    arrived = np.bincount(places, minlength=count).astype(np.float64)
    accepted = np.bincount(places[table.accepted], minlength=count).astype(np.float64)
    known = np.isfinite(table.staleness)
    told = np.bincount(places[known], minlength=count).astype(np.float64)
    total = np.bincount(places[known], weights=table.staleness[known], minlength=count)
    largest = np.full(count, -np.inf)
    np.maximum.at(largest, places[known], table.staleness[known])
    if along == "time":
        lasted = np.full(count, width)
        if count:  # the last span has only begun: nothing is said of its rate before half of it has passed
            lasted[-1] = end - (count - 1) * width if end > (count - 0.5) * width else np.nan
    else:
        ends = np.zeros(count)
        np.maximum.at(ends, places, table.seconds)
        lasted = np.diff(ends, prepend=0.0)
    return Intervals(
        width=width,
        middle=(np.arange(count, dtype=np.float64) + 0.5) * width,
        accepted=accepted,
        rejected=arrived - accepted,
        rate=np.divide(arrived, lasted, out=np.full(count, np.nan), where=lasted > 0),
        staleness=np.divide(total, told, out=np.full(count, np.nan), where=told > 0),
        max_staleness=np.where(told > 0, largest, np.nan),
    )


def points(table: Table, places: Integers | None = None, max_points: int = MAX_POINTS) -> Points:
    """What arrivals were judged by, and the threshold then; of all of them or of those at `places`."""
    chosen = np.arange(len(table)) if places is None else places
    judged = table.judged[chosen]
    has_measure = ~np.isnan(judged)
    drawable = np.isfinite(judged)
    not_finite = int((has_measure & ~drawable).sum())
    logarithmic = _spread_out(np.concatenate([judged, table.threshold[chosen]]))
    if logarithmic:
        drawable &= judged > 0.0
    accepted, chosen, judged = table.accepted[chosen][drawable], chosen[drawable], judged[drawable]
    keep = np.zeros(len(chosen), bool)
    every = []
    for kind in (accepted, ~accepted):
        own = np.flatnonzero(kind)
        step = thinning(len(own), max_points)
        keep[own[::step]] = True
        every.append(step)
    accepted, chosen, judged = accepted[keep], chosen[keep], judged[keep]
    threshold = table.threshold[chosen]
    return Points(
        version=table.version[chosen],
        seconds=table.seconds[chosen],
        accepted=np.where(accepted, judged, np.nan),
        rejected=np.where(accepted, np.nan, judged),
        threshold=np.where(np.isfinite(threshold), threshold, np.nan),
        every=(every[0], every[1]),
        not_finite=not_finite,
        unmeasured=int((~has_measure).sum()),
        logarithmic=logarithmic,
    )


def round_width(wanted: float, least: float = 0.1) -> float:
    """The smallest of 1, 2, 5, 10, … times a power of ten that is no less than either."""
    if not least < wanted < math.inf:
        return least
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(float(f"{factor * power:.6g}") for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))


def thinning(count: int, limit: int) -> int:
    """The smallest power of two such that one in so many of `count` is at most `limit`: it changes seldom."""
    step = 1
    while math.ceil(count / step) > limit:
        step *= 2
    return step


def _spread_out(values: Numbers) -> bool:
    finite = values[np.isfinite(values) & (values != 0.0)]
    return bool(len(finite) and finite.min() > 0.0 and finite.max() > LOG_SPAN * finite.min())
