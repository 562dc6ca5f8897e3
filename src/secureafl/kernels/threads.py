"""How many threads a pass over memory is worth, and the pool that runs it.

A pass is cut into parts that depend on the sizes of its arrays alone and keep their sums apart, so results do not
depend on the number of threads. Kernels let go of Python's lock. Numba could spread a loop over threads itself, but
takes more than twice as long to compile it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba

MAX_THREADS: int = numba.get_num_threads()  # the processors there are, or what the environment says
VALUES_PER_THREAD = 1 << 18  # below, waking a second thread takes longer than the work

_pool: ThreadPoolExecutor | None = None


def num_threads(num_values: int, limit: int = 0) -> int:
    """How many threads reading so many floats can feed; at most `limit`, or all there are if that is 0."""
    most = min(limit, MAX_THREADS) if limit > 0 else MAX_THREADS
    return max(1, min(most, num_values // VALUES_PER_THREAD))


def in_parts(kernel: Callable[..., Any], num_parts: int, threads: int, *arguments: Any) -> None:
    """Call `kernel(first, last, *arguments)` so that all parts from 0 to `num_parts` are done, on so many threads."""
    threads = max(1, min(threads, num_parts))
    bounds = [num_parts * place // threads for place in range(threads + 1)]
    others = [_helpers().submit(kernel, bounds[i], bounds[i + 1], *arguments) for i in range(1, threads)]
    kernel(0, bounds[1], *arguments)
    for other in others:
        other.result()


def _helpers() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, MAX_THREADS - 1), thread_name_prefix="secureafl-kernel")
    return _pool


def _forget_pool() -> None:
    """A forked process has no threads but the one that forked."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)
