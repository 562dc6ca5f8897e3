"""Rows in Ray: spread over actors, on one machine or on many. Needs the extra `ray`.

Each actor keeps the rows of some clients in the memory of its node, and nobody else's. A row is in one place only:
an actor that is lost takes its rows with it, and is never started again, as it would have none. The next arrival that
needs one of them ends the run, which is then resumed from its journal with the actors that can be had.

Ray sends arrays as it sends everything, and trusts whoever reaches its ports. Let nobody else reach them.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from secureafl.errors import RowsError
from secureafl.types import Array

CONNECT_SECONDS = 10.0
START_SECONDS = 60.0
"""How long actors may take to start."""


class _Shard:
    """The rows of some clients. It runs on whichever node Ray chose."""

    def __init__(self) -> None:
        self._rows: dict[int, Array] = {}

    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def read(self, place: int) -> Array:
        return self._rows[place]

    def write(self, place: int, row: Array) -> None:
        self._rows[place] = row.copy()  # what Ray gives may not be kept without keeping its message

    def drop(self, place: int) -> None:
        self._rows.pop(place, None)

    def clear(self) -> None:
        self._rows.clear()


class RayRows:
    """Rows by place, spread over actors evenly.

    address     of a Ray cluster: `HOST:PORT`, `auto` for one that was started on this machine; of no use in a process
                that is connected to one already
    num_actors  None for one on each node
    """

    where = "Ray cluster"

    def __init__(self, address: str = "auto", num_actors: int | None = None) -> None:
        self._address = address
        self._lost: str | None = None
        if not ray.is_initialized():  # a process has one cluster
            try:
                _require_listener(address)
                ray.init(address=address, log_to_driver=False, configure_logging=False)
            except (OSError, RuntimeError, ValueError, RayError) as error:
                raise RowsError(
                    f"cannot reach a Ray cluster at {address}: {_first_line(error)}. Start one with `ray start --head`,"
                    " and name it in ray_address"
                ) from None
        self._shards, self.nodes = self._start(num_actors)
        weakref.finalize(self, _end, self._shards)
        self._writes: dict[int, Any] = {}  # the last one to each actor, which may still be under way

    def _start(self, num_actors: int | None) -> tuple[list[Any], list[str]]:
        """The actors, in turn on every node, and the node of each. A node that was just lost still counts as one for
        some seconds: then it is tried again.
        """
        kind: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(_Shard)
        deadline = time.monotonic() + START_SECONDS
        while True:
            nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            shards = [
                kind.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
                for node, _ in zip(itertools.cycle(nodes), range(num_actors or len(nodes)), strict=False)
            ]
            try:
                return shards, ray.get([shard.node.remote() for shard in shards], timeout=START_SECONDS)
            except RayError as error:
                _end(shards)
                if time.monotonic() > deadline:
                    raise RowsError(
                        f"cannot start actors in the Ray cluster at {self._address}: {_first_line(error)}. See `ray"
                        " status`, and resume the run"
                    ) from None
                time.sleep(1.0)

    def read(self, place: int) -> Array:
        number, within = self._find(place)
        kept = self._asking(lambda: ray.get(self._shards[number].read.remote(within)))
        return np.array(kept)  # what Ray gives may not be changed

    def write(self, place: int, row: Array) -> None:
        """Returns before the row is there; the next write to the same actor waits for it, and reads come behind it."""
        number, within = self._find(place)
        self._settle(number)
        self._writes[number] = self._asking(lambda: self._shards[number].write.remote(within, row))

    def drop(self, place: int) -> None:
        number, within = self._find(place)
        self._settle(number)
        self._writes[number] = self._asking(lambda: self._shards[number].drop.remote(within))

    def clear(self) -> None:
        self._asking(lambda: ray.get([each.clear.remote() for each in self._shards]))

    def _find(self, place: int) -> tuple[int, int]:
        within, number = divmod(place, len(self._shards))
        return number, within

    def _settle(self, number: int) -> None:
        if (last := self._writes.pop(number, None)) is not None:
            self._asking(lambda: ray.get(last))

    def _asking(self, ask: Callable[[], Any]) -> Any:
        """What fails once fails for good: a row may be missing, or an old one may be in its place."""
        if self._lost is None:
            try:
                return ask()
            except (RayError, ConnectionError, TimeoutError) as error:
                self._lost = _first_line(error)
        raise RowsError(
            f"rows in the Ray cluster at {self._address} are lost: {self._lost}. What was learned is on record: resume"
            " the run, with this cluster, another one, or rows = 'memory'"
        )


def _require_listener(address: str) -> None:
    """Raise if nobody listens there: Ray itself would wait for ever."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _end(shards: list[Any]) -> None:
    with contextlib.suppress(Exception):  # the cluster may be gone
        for shard in shards:
            ray.kill(shard)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
