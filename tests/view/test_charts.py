import math
from pathlib import Path

import numpy as np
import pytest
from tests.view.journals import write_arrivals

from secureafl.server.record.entries import Entry, Event
from secureafl.view.arrivals import Arrivals, Table
from secureafl.view.charts import MAX_INTERVALS, MAX_POINTS, intervals, points, round_width, thinning
from secureafl.view.reader import RunReader


def arrived(*rows: tuple[float, bool, dict[str, float]]) -> Table:
    arrivals = Arrivals()
    for number, (seconds, accepted, evidence) in enumerate(rows):
        arrivals.add(Entry(seconds, number, "a", Event.ARRIVAL, "", accepted, evidence, number=number))
    return arrivals.table


def test_intervals_worked_out_by_hand() -> None:
    told = {"staleness": 4.0}
    drawn = intervals(arrived((0.0, True, told), (1.5, False, {"staleness": 2.0}), (4.0, True, {})), max_intervals=2)
    assert drawn.width == 2.0
    assert drawn.middle.tolist() == [1.0, 3.0, 5.0]
    assert drawn.accepted.tolist() == [1.0, 0.0, 1.0]
    assert drawn.rejected.tolist() == [1.0, 0.0, 0.0]
    assert drawn.rate[:2].tolist() == [1.0, 0.0]
    assert math.isnan(drawn.rate[2]), "the last span has only begun"
    assert drawn.staleness[0] == 3.0
    assert drawn.max_staleness[0] == 4.0
    assert np.isnan(drawn.staleness[1:]).all()


def test_intervals_along_the_count_of_updates() -> None:
    drawn = intervals(arrived(*((seconds, True, {}) for seconds in (1.0, 2.0, 2.5, 4.5))), "updates", 2)
    assert drawn.width == 2.0
    assert drawn.accepted.tolist() == [2.0, 2.0]
    assert drawn.rate.tolist() == [1.0, 0.8]  # two until 2 s, two more until 4.5 s


def test_points_say_what_was_judged_and_leave_out_what_cannot_be_drawn() -> None:
    table = arrived(
        (0.0, True, {"norm": 1.0}),  # a first contact
        (1.0, True, {"lipschitz_factor": 2.0, "threshold": math.inf}),
        (2.0, False, {"lipschitz_factor": 300.0, "threshold": 10.0}),
        (3.0, False, {"lipschitz_factor": math.inf, "threshold": 10.0}),
    )
    drawn = points(table)
    assert drawn.version.tolist() == [1, 2]
    assert np.nan_to_num(drawn.accepted, nan=-1).tolist() == [2.0, -1.0]
    assert np.nan_to_num(drawn.rejected, nan=-1).tolist() == [-1.0, 300.0]
    assert np.nan_to_num(drawn.threshold, nan=-1).tolist() == [-1.0, 10.0]
    assert drawn.not_finite == 1
    assert drawn.logarithmic


def test_measures_below_zero_have_a_plain_axis() -> None:
    drawn = points(arrived((0.0, True, {"cosine": 0.9}), (1.0, False, {"cosine": -0.01})))
    assert not drawn.logarithmic
    assert drawn.rejected[1] == -0.01


@pytest.mark.parametrize("count", [0, 1, 799, 801, 20_000])
def test_what_is_drawn_is_bounded_and_nothing_is_lost_in_sums(count: int, tmp_path: Path) -> None:
    table = RunReader(write_arrivals(tmp_path, count)).arrivals.table
    dots = points(table)
    assert len(dots.seconds) <= 2 * MAX_POINTS
    assert dots.every == (thinning(count - count // 4, MAX_POINTS), thinning(count // 4, MAX_POINTS))
    for spans in (intervals(table), intervals(table, "updates")):
        assert len(spans.middle) <= MAX_INTERVALS + 1
        assert spans.accepted.sum() + spans.rejected.sum() == count


def test_rare_rejections_are_all_drawn() -> None:
    rows = [(float(k), k % 1000 != 500, {"lipschitz_factor": 1.0}) for k in range(5_000)]
    dots = points(arrived(*rows))
    assert np.isfinite(dots.rejected).sum() == 5
    assert dots.every == (8, 1)


def test_widths_are_round() -> None:
    assert [round_width(least) for least in (0.0, 0.1, 0.11, 0.4, 1.0, 1.1, 30.0, 99.0)] == [
        0.1,
        0.1,
        0.2,
        0.5,
        1.0,
        2.0,
        50.0,
        100.0,
    ]
    assert round_width(0.2, least=1.0) == 1.0
    assert round_width(math.inf) == 0.1
