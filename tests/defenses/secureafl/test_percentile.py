import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.types import ClientId


def test_a_client_that_sends_often_has_one_entry() -> None:
    log = ClientLog(0.5)
    for client in range(9):
        log.admit(10.0, ClientId(client))
    for _ in range(1000):
        log.admit(0.0, ClientId(9))
    assert (len(log), log.threshold()) == (10, 10.0)


def test_only_the_clients_heard_last_count() -> None:
    log = ClientLog(0.5, window=3)
    for client, value in enumerate([1.0, 2.0, 3.0, 4.0]):
        log.admit(value, ClientId(client))
    log.admit(2.5, ClientId(1))  # heard again: now client 2 is the one heard longest ago
    log.admit(9.0, ClientId(7))
    assert [log.quantile(share) for share in (0.0, 0.4, 0.9)] == [2.5, 4.0, 9.0]


def test_an_infinite_value_neither_passes_nor_stays() -> None:
    log = ClientLog(0.5)
    assert log.threshold() == math.inf
    assert not log.admit(math.inf, ClientId(0))
    assert len(log) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=60))
def test_it_equals_a_plain_reading_and_a_loaded_one_goes_on_alike(values: list[tuple[int, float]]) -> None:
    log, last = ClientLog(0.6, window=4, tolerance=2.0), dict[int, float]()
    for client, value in values:
        log.admit(value, ClientId(client))
        last.pop(client, None)
        last[client] = value
        if len(last) > 4:
            del last[next(iter(last))]
        entries = sorted(last.values())
        assert log.threshold() == 2.0 * entries[math.floor(0.6 * len(entries))]
        other = ClientLog(0.6, window=4, tolerance=2.0)
        other.load_state_dict(log.state_dict())
        assert other.threshold() == log.threshold()
        np.testing.assert_array_equal(other.state_dict()["clients"], log.state_dict()["clients"])
