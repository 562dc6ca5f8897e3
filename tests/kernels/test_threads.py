import os
import threading

import pytest

from secureafl.kernels.threads import MAX_THREADS, VALUES_PER_THREAD, in_parts, num_threads

PLENTY = 1000 * VALUES_PER_THREAD


@pytest.mark.parametrize(
    ("num_values", "limit", "expected"),
    [(PLENTY, 0, MAX_THREADS), (PLENTY, 1, 1), (PLENTY, 1000, MAX_THREADS), (10, 0, 1), (0, 0, 1)],
)
def test_threads_are_used_when_there_is_work_for_them(num_values: int, limit: int, expected: int) -> None:
    assert num_threads(num_values, limit) == expected


@pytest.mark.parametrize(("num_parts", "threads"), [(1, 1), (1, 4), (7, 1), (7, 2), (7, 3), (7, 7), (0, 2)])
def test_every_part_is_done_once(num_parts: int, threads: int) -> None:
    done: list[int] = []
    in_parts(lambda first, last, into: into.extend(range(first, last)), num_parts, threads, done)
    assert sorted(done) == list(range(num_parts))


def test_parts_run_on_threads_of_their_own() -> None:
    both = threading.Barrier(2, timeout=10)
    in_parts(lambda first, last: both.wait(), 2, 2)


def test_what_goes_wrong_in_a_part_is_raised() -> None:
    def fail_on_the_last(first: int, last: int) -> None:
        if last == 4:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_parts(fail_on_the_last, 4, 2)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_a_pool_of_its_own() -> None:
    in_parts(lambda first, last: None, 2, 2)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        in_parts(lambda first, last: done.append(last - first), 4, 2)
        os._exit(0 if sum(done) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
