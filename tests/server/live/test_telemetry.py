from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from secureafl import Machine, Reason
from secureafl.defenses import AsyncSGD, SecureAFL
from secureafl.server.live.telemetry import Histogram, Telemetry, num_excluded
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.run import Run, StoreSettings

PARAMS = np.zeros(2, np.float32)


def machine() -> Machine:
    return Machine(AsyncSGD(2), PARAMS)


def live(run: Run) -> Telemetry:
    telemetry = Telemetry(lambda: run.seconds)
    run.watch(telemetry)
    return telemetry


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram.empty((1.0, 5.0))
    for value in (0.5, 1.0, 1.1, 9.0):
        histogram.add(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.count == 4
    assert histogram.total == pytest.approx(11.6)
    before = histogram.copy()
    assert histogram.mean_since(before) is None
    histogram.add(2.0)
    histogram.add(4.0)
    assert histogram.mean_since(before) == pytest.approx(3.0)


def test_figures_are_the_journals_rows_also_after_a_restart(tmp_path: Path) -> None:
    settings = StoreSettings(run_dir=tmp_path, snapshot_every=1)
    run = Run(machine(), settings)
    telemetry = live(run)
    run.note("a", Event.JOINED)
    run.note("b", Event.JOINED)
    tickets = [run.issue(name) for name in "ababa"]
    run.receive(tickets[0].number, np.ones(2, np.float32))
    run.receive(tickets[1].number, np.full(2, np.nan, np.float32))
    run.receive(tickets[2].number, Reason.MALFORMED)
    run.withdraw(tickets[3].number, Event.EXPIRED, "too slow")
    run.note("b", Event.LEFT)
    before = telemetry.read()
    assert {key: count for key, count in before.arrivals.items() if count} == {
        ("accepted", "accepted"): 1,
        ("refused", "not-finite"): 1,
        ("refused", "malformed"): 1,
    }
    assert {event: count for event, count in before.events.items() if count} == {
        Event.JOINED: 2,
        Event.ISSUED: 5,
        Event.EXPIRED: 1,
        Event.LEFT: 1,
        Event.SNAPSHOT: 1,
    }
    assert (before.version, before.present) == (1, 1)
    assert before.staleness.counts[:2] == [1, 0], "only what was judged has arrived"
    assert (before.times["step"].count, before.times["journal"].count, before.times["snapshot"].count) == (1, 1, 1)
    run.close()

    again = Run.resume(machine(), settings)
    after = live(again).read()
    assert after.arrivals == before.arrivals
    assert Counter(after.events) - Counter(before.events) == {Event.RESUMED: 1}
    assert (after.version, after.present, after.staleness) == (1, 0, before.staleness)
    assert after.seconds_since_arrival >= 0.0
    again.close()


def test_known_words_begin_at_zero_and_none_stands_for_a_client() -> None:
    reading = Telemetry(lambda: 0.0).read()
    assert reading.arrivals["rejected", "changed-too-abruptly"] == 0
    assert reading.arrivals["refused", "bad-signature"] == 0
    assert not {"unsolicited", "ticket-closed"} & {reason for _, reason in reading.arrivals}
    assert set(reading.events) == set(Event) - {Event.ARRIVAL, Event.REFUSED}


def test_time_since_an_arrival_counts_from_the_start_while_there_is_none() -> None:
    now = 5.0
    telemetry = Telemetry(lambda: now)
    now = 9.0
    assert telemetry.read().seconds_since_arrival == 4.0
    evidence = {"lipschitz_factor": 3.0, "threshold": 2.0}
    telemetry.row(Entry(8.5, 0, "a", Event.ARRIVAL, "changed-too-abruptly", False, evidence, 0, 0))
    telemetry.row(Entry(8.5, 1, "a", Event.ARRIVAL, "far-from-reference", False, {"threshold": 7.0}, 1, 0))
    reading = telemetry.read()
    assert reading.seconds_since_arrival == 0.5
    assert (reading.lipschitz_factor, reading.threshold) == (3.0, 2.0), "another defense's threshold is another thing"


def test_only_a_defense_with_votes_has_clients_without_one() -> None:
    assert num_excluded(AsyncSGD(2)) is None
    assert num_excluded(SecureAFL(2)) == 0
