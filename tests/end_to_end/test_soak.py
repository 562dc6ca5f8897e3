"""A day in a minute, the judge of growth, and what is held against the log. `soak` has the full size."""

import dataclasses
import hashlib
import itertools
import json

import numpy as np
import pytest
from tests.end_to_end.soak import soaked
from tests.end_to_end.soak_clients import Sends, day
from tests.end_to_end.soak_growth import MIN_SAMPLES, Allowance, judge
from tests.end_to_end.soak_record import Record, Sent
from tests.postgres import PostgresServer

from secureafl.server.record.entries import Entry, Event
from secureafl.types import Vector

ALLOWANCE = Allowance(1.1, 2.0)


def grew(series: list[float]) -> bool:
    found = judge("memory", series, ALLOWANCE)
    assert found is not None
    return found.grew


def test_what_is_flat_or_built_up_in_the_first_tenth_does_not_grow() -> None:
    assert not grew([100.0] * 100)
    assert not grew([10.0 * k for k in range(10)] + [100.0] * 90)


def test_what_goes_up_all_the_time_grows() -> None:
    # Second tenth: 100 + 10 … 19, the median is 114.5; the last one 194.5; allowed are 1.1 * 114.5 + 2 = 127.95.
    found = judge("memory", [100.0 + k for k in range(100)], ALLOWANCE)
    assert found is not None
    assert (found.before, found.after) == (114.5, 194.5)
    assert found.allowed == pytest.approx(127.95)
    assert found.grew


def test_a_step_that_stays_grows_and_a_peak_does_not() -> None:
    assert grew([100.0] * 50 + [120.0] * 50)
    assert not grew([100.0] * 50 + [500.0] * 3 + [100.0] * 47)
    assert not grew([100.0] * 97 + [500.0] * 3), "three of the last ten"


def test_a_saw_whose_teeth_stay_as_high_does_not_grow_and_one_whose_teeth_rise_does() -> None:
    teeth = list(itertools.islice(itertools.cycle([100.0, 110.0, 120.0]), 90))
    assert not grew(teeth)
    assert grew([value * (1.0 + place / 90.0) for place, value in enumerate(teeth)])


def test_what_shrinks_does_not_grow() -> None:
    assert not grew([200.0 - k for k in range(100)])


def test_exactly_as_much_as_is_allowed_is_no_growth() -> None:
    assert not grew([100.0] * 90 + [112.0] * 10)
    assert grew([100.0] * 90 + [112.1] * 10)


def test_a_short_series_is_not_judged() -> None:
    assert judge("memory", [1.0] * (MIN_SAMPLES - 1), ALLOWANCE) is None
    assert judge("memory", [1.0] * MIN_SAMPLES, ALLOWANCE) is not None


MODELS = [np.full(3, value, np.float32) for value in (0.0, 1.0, 2.0)]


def hashed(model: Vector) -> bytes:
    return hashlib.sha256(model.tobytes()).digest()


def arrival(version: int, ticket: int, sent: bytes = b"sent") -> Entry:
    """The arrival that led from one of the models to the next one; its row follows those of the arrivals before."""
    model, number = hashed(MODELS[version + 1]), version + 1
    return Entry(
        0.0, version, "a", Event.ARRIVAL, "accepted", True, {}, ticket, version, None, model, number=number, sent=sent
    )


@pytest.fixture
def record() -> Record:
    """Two updates were sent and acknowledged, and one of them is on record."""
    found = Record(MODELS[0])
    for ticket in (0, 1):
        found.send(ticket, Sent("a", Sends.HONEST, 0.0, b"sent"))
        found.acknowledged.add(ticket)
    found.show(0, MODELS[0].tobytes())
    found.take(arrival(0, ticket=0))
    found.show(1, MODELS[1].tobytes())
    return found


def test_an_acknowledged_update_is_lost_unless_it_is_on_record_as_it_was_sent(record: Record) -> None:
    assert record.num_lost() == 1
    record.take(arrival(1, ticket=1))
    assert (record.num_lost(), record.broken) == (0, [])


def test_an_acknowledged_update_whose_bytes_are_others_is_lost(record: Record) -> None:
    record.take(arrival(1, ticket=1, sent=b"another"))
    assert record.num_lost() == 1


def test_a_model_that_a_client_was_given_and_that_is_not_on_record_is_lost(record: Record) -> None:
    record.take(arrival(1, ticket=1))
    record.show(2, MODELS[1].tobytes())
    assert record.num_lost() == 1


def test_two_models_of_one_version_and_rows_that_skip_one_are_broken_promises(record: Record) -> None:
    record.show(1, MODELS[2].tobytes())
    assert record.broken == ["clients were given two models of version 1"]
    record.take(dataclasses.replace(arrival(1, ticket=1), number=3))
    assert record.broken[1:] == ["row 3 follows row 1"]


def test_an_arrival_that_nobody_sent_is_a_broken_promise(record: Record) -> None:
    record.take(arrival(1, ticket=7))
    assert record.broken == ["arrival 1 is of ticket 7, for which nobody sent anything"]


def test_an_update_that_was_signed_with_a_replaced_key_and_arrives_is_let_in(record: Record) -> None:
    record.send(1, Sent("a", Sends.OLD_KEY, 0.0, b"sent"))
    assert record.num_let_in() == 0
    record.take(arrival(1, ticket=1))
    assert record.num_let_in() == 1


@pytest.mark.end_to_end
def test_a_day_in_a_minute_keeps_every_promise(postgres: PostgresServer) -> None:
    with soaked(postgres, day((5.0, "killed")), minutes=0.6, num_clients=20, dim=2000, name="day") as soak:
        found = soak.summary()
    assert all(found["promises"].values()), json.dumps(found, indent=1)
    assert found["leaders"] >= 2
    assert found["rotations of keys"] == found["replaced keys that were tried and refused"] == 1
    assert found["verified and audited meanwhile"] == 1
    assert found["attacks"][0]["malicious"] > 0


@pytest.mark.end_to_end
def test_a_server_that_keeps_every_update_in_memory_is_found(postgres: PostgresServer) -> None:
    with soaked(postgres, day(), name="hoard", minutes=0.5, num_clients=20, dim=100_000, hoards=True) as soak:
        found = soak.summary()
    assert not found["promises"]["nothing grows"], json.dumps(found, indent=1)
    grown = {growth["of"] for growth in found["growth"] if growth["after"] > growth["allowed"]}
    assert "leader: resident memory (MB)" in grown


@pytest.mark.end_to_end
def test_a_server_that_forgets_no_updates_is_found(postgres: PostgresServer) -> None:
    with soaked(
        postgres, day(), name="full", minutes=0.5, num_clients=20, dim=2000, snapshot_every=10, forgets=False
    ) as soak:
        found = soak.summary()
    assert not found["promises"]["disk within its bounds"], json.dumps(found, indent=1)
    kept = found["most on disk"]["updates kept (MB)"]
    assert kept["seen"] > kept["bound"]
