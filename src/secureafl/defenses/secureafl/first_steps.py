"""The first steps of a run, before anyone can say how long an update usually is.

Whoever comes first is compared with nobody, so its update counts as long as it is. Once `NUM_HEARD` clients were heard,
the median of their lengths tells; if one who came before was far longer,

    dropped:    what it sent, and its vote
    next step:  direction - (sum of all directions so far)        the model begins anew from where it stood at first

whatever the learning rate is. So who comes first, alone, decides nothing; and where nobody was too long, nothing
changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from secureafl.defenses.secureafl.stages import Arrival, Beginning
from secureafl.types import Array, ClientId, StateDict, Vector

NUM_HEARD = 3
"""The fewest clients of which one that lies is a minority."""


class FirstSteps(Beginning):
    """Takes the first steps back, if they followed an update that was more than `limit` times as long as is usual."""

    name = "beginning"

    def __init__(self, limit: float = 8.0) -> None:
        self._limit = limit
        self._lengths: dict[ClientId, float] = {}
        self._gone: Vector | None = None
        self._returns = False
        self.over = False

    def hear(self, arrival: Arrival) -> Sequence[ClientId]:
        """Who turns out to have been too long, now that enough clients were heard."""
        if self._returns:
            return []
        self._lengths[arrival.client] = max(arrival.norm, self._lengths.get(arrival.client, 0.0))
        if len(self._lengths) < NUM_HEARD:
            return []
        longest = self._limit * statistics.median(self._lengths.values())
        # what the sender brings now is shortened already
        found = [client for client, norm in self._lengths.items() if norm > longest and client != arrival.client]
        self._returns = bool(found)
        if not found:
            self._end()
        return found

    def follow(self, direction: Vector) -> Vector:
        """The step that the model takes in the place of this one."""
        if self._returns:
            back = direction if self._gone is None else direction - self._gone
            self._end()
            return back
        if not self.over:
            self._gone = direction.copy() if self._gone is None else self._gone + direction
        return direction

    def state_dict(self) -> StateDict:
        return {
            "clients": np.array(list(self._lengths), np.int64),
            "lengths": np.array(list(self._lengths.values()), np.float64),
            "gone": np.empty(0, np.float32) if self._gone is None else self._gone.copy(),
            "phase": np.array([self._returns, self.over], np.int64),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if not state:  # of a run that began before there was such a stage
            self._end()
            return
        clients, lengths = np.asarray(state["clients"]).tolist(), np.asarray(state["lengths"]).tolist()
        self._lengths = {ClientId(client): norm for client, norm in zip(clients, lengths, strict=True)}
        gone = np.array(state["gone"], np.float32)
        self._gone = gone if len(gone) else None
        self._returns, self.over = map(bool, np.asarray(state["phase"]).tolist())

    def _end(self) -> None:
        self._lengths, self._gone, self._returns, self.over = {}, None, False, True
