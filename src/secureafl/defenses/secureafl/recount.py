"""Who moves as one, counted in small parts, so that no single arrival has to wait for the whole count.

Some clients, the *anchors*, are drawn by lot; all of them if there are at most MAX_ANCHORS. Everyone is compared with
each anchor in two ways:

    C_ij   cosine of what the two keep asking for, once the coordinate-wise median of all is taken away
    Z_ik = C_ik - median over j of C_jk         how much more than is usual client i is like anchor k
    Q_ij   cosine of Z_i and Z_j over all anchors k other than i and j
    alike(i, j)  <=>  C_ij > limit,  or  Q_ij > profile_limit and C_ij > MIN_COSINE

Colluders who take care to be unlike each other still have the same pattern of likeness to third clients: Q sees it.

Shapes: m = anchors, w = numbers of a sketch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from secureafl import kernels
from secureafl.types import ClientId, Vector

MAX_ANCHORS = 256
MIN_COSINE = 0.05
"""A pattern alone does not make two clients alike: they must ask for a little of the same."""
PROFILE_LIMIT = 0.6
PART = 200_000
"""Multiplications of one part of the work, about."""


class Recount:
    """One count. `work` does a part of it; when all parts are done, `alike` says how many anchors are like a client."""

    def __init__(self, anchors: Sequence[ClientId], sketches: Vector, limit: float) -> None:
        """anchors with their sketches (m, w), which stay as they are until the count is over; `limit` on C."""
        self.anchors = tuple(anchors)
        self.sketches = sketches
        self._limit = limit
        m, w = sketches.shape
        self._place = {client: place for place, client in enumerate(self.anchors)}
        self._profile_limit = max(PROFILE_LIMIT, 3.5 / math.sqrt(max(1, m - 2)))  # a pattern of few says little
        self._centre = np.empty(w, np.float32)
        self._rows = np.empty((m, w), np.float32)
        self._cosines = np.empty((m, m))
        self._middle = np.empty(m)
        self._profiles = np.empty((m, m), np.float32)
        self._squares = np.empty(m)
        self._parts: list[Callable[[], None]] = [
            *self._in_parts(self._find_centre, w, 16 * m),
            self._normalise,
            *self._in_parts(self._compare, m, m * w),
            *self._in_parts(self._find_middle, m, 16 * m),
            self._find_profiles,
        ]
        self.num_done = 0

    @property
    def num_parts(self) -> int:
        """Parts until anchors are compared with each other."""
        return len(self._parts)

    def work(self) -> bool:
        """Do a part; False if all are done."""
        if self.num_done == len(self._parts):
            return False
        self._parts[self.num_done]()
        self.num_done += 1
        return True

    def clients_per_part(self) -> int:
        """How many clients can be compared with all anchors in the time of a part."""
        m, w = len(self.anchors), len(self._centre)
        return max(1, PART // (m * (m + w)))

    def alike(self, client: ClientId, sketch: Vector) -> int:
        """How many anchors other than itself are like a client with this sketch."""
        place = self._place.get(client)
        if place is not None:
            cosines, profile = self._cosines[place], self._profiles[place]
        else:
            cosines = kernels.products_with(self._rows, _unit(sketch - self._centre))
            profile = (cosines - self._middle).astype(np.float32)
        along = kernels.products_with(self._profiles, profile)
        own = kernels.dot(profile, profile) - profile.astype(np.float64) ** 2
        theirs = self._squares - (0.0 if place is None else self._profiles[:, place].astype(np.float64) ** 2)
        lengths = np.sqrt(np.maximum(own, 0.0) * np.maximum(theirs, 0.0))
        pattern = (along > self._profile_limit * lengths) & (lengths > 0.0) & (cosines > MIN_COSINE)
        alike = (cosines > self._limit) | pattern
        count = int(alike.sum())
        return count - 1 if place is not None and alike[place] else count

    def _in_parts(self, do: Callable[[int, int], None], num: int, each: int) -> list[Callable[[], None]]:
        size = max(1, PART // each)
        return [partial(do, first, min(first + size, num)) for first in range(0, num, size)]

    def _find_centre(self, first: int, last: int) -> None:
        self._centre[first:last] = np.median(self.sketches[:, first:last], axis=0)

    def _normalise(self) -> None:
        rows = self.sketches - self._centre
        lengths = np.sqrt([kernels.dot(row, row) for row in rows])
        self._rows[:] = rows / np.where(lengths > 0.0, lengths, 1.0)[:, None]

    def _compare(self, first: int, last: int) -> None:
        for place in range(first, last):
            self._cosines[place] = kernels.products_with(self._rows, self._rows[place])

    def _find_middle(self, first: int, last: int) -> None:
        m = len(self._rows)
        if m < 2:
            self._middle[:] = 0.0
            return
        columns = self._cosines.T[first:last]
        others = columns[np.arange(m) != np.arange(first, last)[:, None]]
        self._middle[first:last] = np.median(others.reshape(-1, m - 1), axis=1)

    def _find_profiles(self) -> None:
        self._profiles[:] = self._cosines - self._middle
        np.fill_diagonal(self._profiles, 0.0)
        self._squares[:] = [kernels.dot(row, row) for row in self._profiles]


def _unit(vector: Vector) -> Vector:
    length = math.sqrt(kernels.dot(vector, vector))
    return (vector / np.float32(length)).astype(np.float32) if length > 0.0 else vector
