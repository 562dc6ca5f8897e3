"""A queue whose items come out when they are due, served by a fixed number of threads."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Schedule(Generic[Item]):
    """`put` from any thread; each of `num_workers` threads calls `serve(item)` for the next one due.

    An exception from `serve` is handed to `on_error` with its item; the worker goes on. One from `on_error` itself is
    handed to `on_death`, and the worker ends. With no workers, `serve_due` does their work on the caller's thread.
    """

    def __init__(
        self,
        serve: Callable[[Item], None],
        on_error: Callable[[Item, Exception], None],
        on_death: Callable[[BaseException], None],
        *,
        num_workers: int,
        clock: Callable[[], float],
    ) -> None:
        self._serve = serve
        self._on_error = on_error
        self._on_death = on_death
        self._clock = clock
        self._heap: list[tuple[float, int, Item]] = []
        self._order = itertools.count()  # first come, first served among items due at the same time
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(num_workers)]
        for thread in self._threads:
            thread.start()

    def put(self, item: Item, delay: float = 0.0) -> None:
        """Serve `item` after `delay` seconds."""
        with self._changed:
            heapq.heappush(self._heap, (self._clock() + delay, next(self._order), item))
            self._changed.notify()

    def next_due(self) -> float | None:
        """When the next item is due, on the clock; None if there is none."""
        with self._changed:
            return self._heap[0][0] if self._heap else None

    def serve_due(self) -> None:
        """Serve the items that are due now, in order."""
        now = self._clock()
        while True:
            with self._changed:
                if self._closed or not self._heap or self._heap[0][0] > now:
                    return
                item = heapq.heappop(self._heap)[2]
            try:
                self._serve_one(item)
            except BaseException as error:
                self._on_death(error)

    def close(self, timeout: float) -> None:
        """Serve nothing more and wait up to `timeout` seconds for work under way; what still hangs is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = self._clock() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _work(self) -> None:
        try:
            while (item := self._next()) is not None:
                self._serve_one(item[0])
        except BaseException as error:
            self._on_death(error)

    def _serve_one(self, item: Item) -> None:
        try:
            self._serve(item)
        except Exception as error:
            self._on_error(item, error)

    def _next(self) -> tuple[Item] | None:
        with self._changed:
            while not self._closed:
                wait = self._heap[0][0] - self._clock() if self._heap else None
                if wait is not None and wait <= 0.0:
                    return (heapq.heappop(self._heap)[2],)
                self._changed.wait(wait)
        return None
