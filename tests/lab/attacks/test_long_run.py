import numpy as np

from secureafl import ClientId, Vector
from secureafl.lab.attacks.long_run import LongRun

A, B = ClientId(3), ClientId(5)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_the_average_of_directions_by_hand() -> None:
    seen = LongRun(decay=0.5)
    seen.take(A, vector(2, 0))
    seen.take(A, vector(0, 5))  # (1, 0) and (0, 1) count alike, whatever their lengths: (0.5, 0.5)
    seen.take(A, vector(0, -1))  # 1 - decay = 0.5 > 1/3: (0.25, -0.25)
    np.testing.assert_array_equal(seen.state_dict()["rows"], [[0.25, -0.25]])
    direction = seen.direction(A)
    assert direction is not None
    np.testing.assert_allclose(direction, [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-6)


def test_what_has_no_direction_counts_as_nothing() -> None:
    seen = LongRun(decay=0.9)
    for bad in (vector(0, 0), vector(np.nan, 1), vector(np.inf, 1)):
        seen.take(A, bad)
    assert seen.clients == []
    assert seen.direction(A) is None
    seen.take(A, vector(1, 0))
    seen.take(A, vector(-1, 0))
    assert seen.direction(A) is None  # they cancel out


def test_only_the_chosen_are_kept_also_after_a_restart() -> None:
    seen = LongRun(decay=0.9)
    for client in (A, B):
        seen.take(client, vector(1, 0))
    seen.keep([B])
    restored = LongRun(decay=0.9)
    restored.load_state_dict(seen.state_dict())
    for one in (seen, restored):
        one.take(A, vector(1, 0))
        one.take(B, vector(0, 1))
        assert one.clients == [B]
    np.testing.assert_array_equal(seen.state_dict()["rows"], restored.state_dict()["rows"])


def test_an_update_is_not_kept_itself() -> None:
    seen, update = LongRun(decay=0.9), vector(1, 0)
    seen.take(A, update)
    update[:] = 7
    np.testing.assert_array_equal(seen.state_dict()["rows"], [[1, 0]])
