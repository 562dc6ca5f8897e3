"""How many threads a pass over memory is worth."""

from __future__ import annotations

import numba

MAX_THREADS: int = numba.get_num_threads()
VALUES_PER_THREAD = 1 << 18  # below, waking a second thread takes longer than the work


def spread(num_values: int, limit: int = 0) -> None:
    """Let the next parallel kernel of this thread use as many threads as reading `num_values` floats can feed.

    limit  the most to use; 0 for all there are
    """
    most = min(limit, MAX_THREADS) if limit > 0 else MAX_THREADS
    numba.set_num_threads(max(1, min(most, num_values // VALUES_PER_THREAD)))
