"""How many threads a pass over memory is worth."""

from __future__ import annotations

import numba

MAX_THREADS: int = numba.get_num_threads()
VALUES_PER_THREAD = 1 << 18  # below, waking a second thread takes longer than the work


def spread(num_values: int) -> None:
    """Let the next parallel kernel of this thread use as many threads as reading `num_values` floats can feed."""
    numba.set_num_threads(max(1, min(MAX_THREADS, num_values // VALUES_PER_THREAD)))
