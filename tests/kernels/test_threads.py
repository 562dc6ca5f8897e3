import numba
import pytest

from secureafl.kernels.threads import MAX_THREADS, VALUES_PER_THREAD, spread

PLENTY = 1000 * VALUES_PER_THREAD


@pytest.mark.parametrize(
    ("num_values", "limit", "expected"),
    [(PLENTY, 0, MAX_THREADS), (PLENTY, 1, 1), (PLENTY, 1000, MAX_THREADS), (10, 0, 1), (0, 0, 1)],
)
def test_threads_are_used_when_there_is_work_for_them(num_values: int, limit: int, expected: int) -> None:
    spread(num_values, limit)
    assert numba.get_num_threads() == expected
    spread(PLENTY)
