"""How often a client may move the model: about as often as the usual client comes back.

Time is counted in arrivals. The *usual interval* is the median, over clients, of how many arrivals lay between a
client's last two updates; each client has one entry, however often it comes. A client's budget is a bucket of steps.
`per_interval` steps flow in while so many updates of others arrive, up to `burst`; an arrival that moves the model
takes one. Who has none left renews its vote and moves nothing. So a client that answers a thousand times while others
train has one vote and no more steps than a client that is somewhat faster than most.

Clients that no longer come would keep the usual interval long. A lap is over when more than half of those with an entry
were heard. Who was not heard for ACTIVE_LAPS laps, nor for as many times its own interval, loses the entry. If more
than half are gone, those left move the model less often than they answer, but never stop.

Who does not count, one of too many newcomers, has no entry once MIN_CLIENTS others have one: new names change nobody's
budget. Before that, the usual
interval is at least the number of clients that were given work, as the first to answer has no one to be compared with.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np

from secureafl.defenses.base import scoped, unscoped
from secureafl.defenses.secureafl.columns import Column
from secureafl.defenses.secureafl.consensus import MIN_CLIENTS
from secureafl.defenses.secureafl.percentile import ClientLog
from secureafl.defenses.secureafl.stages import Arrival, Budget
from secureafl.types import Array, ClientId, StateDict

ACTIVE_LAPS = 8


class StepBudget(Budget):
    """A bucket of steps for each client.

    per_interval  steps that a client may take, in the long run, while the usual client sends one update
    burst         steps that it may save up
    """

    name = "budget"

    def __init__(self, per_interval: float = 2.0, burst: float = 8.0) -> None:
        self._per_interval = per_interval
        self._burst = burst
        self._now = 0
        self._num_met = 0
        self._steps = Column(np.float64, -1.0)  # left after a client's last arrival
        self._last = Column(np.int64, 0)  # at which arrival that was
        self._intervals = ClientLog()
        self._heard: OrderedDict[ClientId, int] = OrderedDict()  # at which arrival, of those with an entry
        self._laps: deque[int] = deque([0], maxlen=ACTIVE_LAPS)  # at which arrival the last ones began
        self._num_renewed = 0  # entries of this lap

    def meet(self, client: ClientId, name: str) -> None:
        self._num_met = max(self._num_met, client + 1)

    def spend(self, arrival: Arrival) -> bool:
        client = arrival.client
        self._now += 1
        self._num_met = max(self._num_met, client + 1)
        known = self._last[client] > 0
        steps, last = (self._steps[client], self._last[client]) if known else (self._burst, self._now)
        steps = min(self._burst, steps + self._per_interval * self._passed(last) / self._usual())
        moves = steps >= 1.0
        arrival.evidence["steps_left"] = steps = steps - 1.0 if moves else steps
        self._steps[client], self._last[client] = steps, self._now
        if known and (arrival.counts or len(self._intervals) < MIN_CLIENTS):
            self._renew(client, self._now - last)
        return moves

    def forget(self, client: ClientId) -> None:
        del self._steps[client], self._last[client]
        self._heard.pop(client, None)
        self._intervals.forget(client)

    def state_dict(self) -> StateDict:
        clients = self._last.clients()
        return {
            "clocks": np.array([self._now, self._num_met, self._num_renewed], np.int64),
            "clients": clients,
            "steps": self._steps.values[clients],
            "last": self._last.values[clients],
            "heard": np.array(list(self._heard.items()), np.int64).reshape(-1, 2),
            "laps": np.array(self._laps, np.int64),
            **scoped("intervals", self._intervals.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._now, self._num_met, self._num_renewed = np.asarray(state["clocks"]).tolist()
        self._steps.load(state["clients"], state["steps"])
        self._last.load(state["clients"], state["last"])
        self._heard = OrderedDict((ClientId(client), at) for client, at in np.asarray(state["heard"]).tolist())
        self._laps = deque(np.asarray(state["laps"]).tolist(), maxlen=ACTIVE_LAPS)
        self._intervals.load_state_dict(unscoped("intervals", state))

    def _passed(self, last: int) -> int:
        """Arrivals since a client's last one. Its own counts only among few: one who floods must not make time pass."""
        return self._now - last - (len(self._intervals) >= MIN_CLIENTS)

    def _usual(self) -> float:
        """The usual interval."""
        usual = self._intervals.quantile(0.5)
        if len(self._intervals) >= MIN_CLIENTS:
            return max(1.0, usual)
        return max(1.0, float(self._num_met), usual if len(self._intervals) else 1.0)

    def _renew(self, client: ClientId, interval: int) -> None:
        """Enter the client's newest interval; when the lap is over, drop those who are gone."""
        self._num_renewed += self._heard.get(client, 0) <= self._laps[-1]
        self._heard[client] = self._now
        self._heard.move_to_end(client)
        self._intervals.admit(float(interval), client)
        if len(self._heard) > len(self._intervals):  # the log has dropped the client heard least recently
            self._heard.popitem(last=False)
        if 2 * self._num_renewed <= len(self._heard):
            return
        while (gone := next(iter(self._heard))) != client and self._is_gone(gone):
            del self._heard[gone]
            self._intervals.forget(gone)
        self._laps.append(self._now)
        self._num_renewed = 0

    def _is_gone(self, client: ClientId) -> bool:
        """Whether most were heard again and again since this client was, and it should have been."""
        last, interval = self._heard[client], self._intervals.of(client)
        missed = len(self._laps) == ACTIVE_LAPS and last <= self._laps[0]
        return missed and (interval is None or self._now - last > ACTIVE_LAPS * interval)
