"""The server as a deterministic state machine: state x update -> state', verdict, new model.

Nothing here reads a clock, a socket, a file or a global generator. A Flower app, a simulator, a recovery after a crash
and a replay of an old run are this machine, fed from different places.

A *ticket* is the server's own record of a model it handed to a client; a reply is worth what its ticket says, never
what the reply says about itself. A *version* counts arrivals: the model of version t is what stands after t updates
were judged, whether or not they moved it. Versions that hold equal parameters share one array. An update that is
refused without being judged, as garbage or as too stale, closes its ticket and counts as nothing.

The server of a region has a server above it, enrolled like a client (`upstream`). What that one sends is the difference
between this model and its own: the model moves by all of it, and no defense judges it.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from secureafl import kernels
from secureafl.defenses.base import (
    ClientMemory,
    CountsOnRate,
    Defense,
    MeetsClients,
    SaysMemory,
    ViewsState,
    norm,
    scoped,
    unscoped,
)
from secureafl.errors import SecureAFLError, SettingsError, StateError
from secureafl.names_of_0_1 import Formerly
from secureafl.settings import Settings
from secureafl.types import (
    UNJUDGED,
    Array,
    ClientId,
    Model,
    Reason,
    StateDict,
    StateView,
    Update,
    Vector,
    Verdict,
    refuse,
)

_WHOLE = np.float32(1.0)
NAME_BYTES = 140
"""What a name of usual length takes in the list of those enrolled, and in the way back from names to numbers."""
"""The server above is followed the whole way."""


class MachineSettings(Settings):
    """How the machine steps, and how long it waits for the slow."""

    server_lr: float = Field(1.0, gt=0.0)
    """Factor on a verdict's direction: 1 for clients that return weights, the learning rate for gradients."""
    max_staleness: int | None = Field(None, ge=0)
    """Replies to older models are refused, and those models dropped; None to wait for ever."""
    keep_recent: int = Field(0, ge=0)
    """Past versions kept although no ticket needs them, so that a ticket can be issued for them."""
    average_over: int = Field(200, ge=1)
    """The published model is the average of about so many last versions, of the last tenth of the run while that is
    less; 1 publishes the newest. Clients always get the newest. [A]"""
    upstream: str | None = Field(None, min_length=1)
    """The name under which the server above is enrolled, if this one serves a region; None if there is none above."""
    count_refused: bool = False
    """Count refused updates as arrivals, as the paper's rounds do, and as 0.1 did. A run begun so goes on so."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """The server's record of one dispatch."""

    number: int
    client: ClientId
    version: int


class Machine:
    """Holds the model, the open tickets and the defense; `receive` is its only way forward."""

    def __init__(self, defense: Defense, params: Vector, settings: MachineSettings = MachineSettings()) -> None:
        rate = defense.server_lr if isinstance(defense, CountsOnRate) else None
        if rate is not None and rate != settings.server_lr:
            raise SettingsError(
                f"the defense counts on server_lr = {rate}, the machine has {settings.server_lr}: give both the same"
            )
        self.defense = defense
        self._meet = defense.meet if isinstance(defense, MeetsClients) else None
        self.settings = settings
        self._server_lr = np.float32(settings.server_lr)
        self._model = Model(0, _frozen(params.astype(np.float32)))
        self._average = self._model.params.copy()
        self._held: dict[int, Model] = {0: self._model}  # every version that someone may still refer to
        self._tickets: dict[int, Ticket] = {}
        self._uses: Counter[int] = Counter()  # open tickets per version
        self._next_ticket = 0
        self._names: list[str] = []
        self._clients: dict[str, ClientId] = {}

    @property
    def model(self) -> Model:
        """The present model."""
        return self._model

    @property
    def published(self) -> Model:
        """The present version for those who use the model: averaged over the last versions, whose swings cancel."""
        return Model(self._model.version, _frozen(self._average.copy()))

    @property
    def held_versions(self) -> list[int]:
        """Versions whose parameters are in memory, oldest first."""
        return sorted(self._held)

    @property
    def open_tickets(self) -> list[Ticket]:
        """Tickets not yet answered, in the order of issue."""
        return list(self._tickets.values())

    @property
    def roster(self) -> list[str]:
        """Names of all clients ever enrolled; a client's id is its place in this list."""
        return list(self._names)

    @property
    def num_clients(self) -> int:
        """Clients ever enrolled."""
        return len(self._names)

    def name_of(self, client: ClientId) -> str:
        """What the outside world calls this client."""
        return self._names[client]

    def enrol(self, name: str) -> ClientId:
        """The id of the client the outside world calls `name`, given now if it is new."""
        if name not in self._clients:
            self._clients[name] = ClientId(len(self._names))
            self._names.append(name)
            self._introduce(self._clients[name], name)
        return self._clients[name]

    def issue(self, client: ClientId, version: int | None = None) -> Ticket:
        """Record that `client` is given the present model, or a kept older one. `model_of` has its parameters."""
        if not 0 <= client < len(self._names):
            raise SecureAFLError(f"client {client} is not enrolled; call enrol(name) first")
        version = self._model.version if version is None else version
        if version not in self._held:
            raise SecureAFLError(f"version {version} is no longer held; keep_recent is {self.settings.keep_recent}")
        ticket = Ticket(self._next_ticket, client, version)
        self._next_ticket += 1
        self._tickets[ticket.number] = ticket
        self._uses[version] += 1
        return ticket

    def issue_from(self, number: int) -> None:
        """Give the next ticket at least this number, as lower ones were given out before a crash."""
        self._next_ticket = max(self._next_ticket, number)

    def ticket(self, number: int) -> Ticket | None:
        """The open ticket with this number, if there is one."""
        return self._tickets.get(number)

    def model_of(self, ticket: Ticket) -> Model:
        """The model this open ticket was issued for."""
        if ticket.version not in self._held:
            raise SecureAFLError(f"version {ticket.version} of ticket {ticket.number} was dropped as too stale")
        return self._held[ticket.version]

    def withdraw(self, number: int) -> None:
        """Forget a ticket whose update is no longer expected. Unknown numbers are ignored."""
        ticket = self._tickets.get(number)
        if ticket is not None:
            self._close(ticket)

    def receive(self, number: int, delta: Vector) -> Verdict:
        """Take the update for ticket `number`, judge it, move the model, and count the arrival.

        An update for no open ticket is refused, counts as nothing and changes nothing.
        """
        ticket = self._tickets.get(number)
        if ticket is None:
            return self._refuse_uncalled(number)
        if self._names[ticket.client] == self.settings.upstream:
            return self._conclude(ticket, self._follow_upstream(ticket, delta), rate=_WHOLE)
        return self._conclude(ticket, self._judge(ticket, delta))

    def refuse(self, number: int, reason: str) -> Verdict:
        """Take a reply to ticket `number` that holds no update that could be judged."""
        ticket = self._tickets.get(number)
        if ticket is None:
            return self._refuse_uncalled(number)
        return self._conclude(ticket, refuse(reason))

    reject = Formerly("refuse")

    def _refuse_uncalled(self, number: int) -> Verdict:
        """An update for no open ticket: sent twice, replayed, or too late; or for a ticket that never was."""
        return refuse(Reason.TICKET_CLOSED if 0 <= number < self._next_ticket else Reason.UNSOLICITED)

    def _conclude(self, ticket: Ticket, verdict: Verdict, rate: np.float32 | None = None) -> Verdict:
        self._close(ticket)
        if verdict.reason in UNJUDGED and not self.settings.count_refused:
            return verdict
        return self._arrive(verdict, self._server_lr if rate is None else rate)

    def _arrive(self, verdict: Verdict, rate: np.float32) -> Verdict:
        """Move the model as the verdict says and count the arrival."""
        params = self._model.params
        if verdict.direction is not None:
            moved = kernels.moved(params, verdict.direction, rate)
            if moved is not None:
                params = _frozen(moved)
            else:
                verdict = refuse(Reason.MODEL_OVERFLOW, **verdict.evidence)
        self._model = Model(self._model.version + 1, params)
        self._held[self._model.version] = self._model
        self._follow()
        self._release_passed()
        return verdict

    def _follow(self) -> None:
        """Move the average towards the present model."""
        span = max(1, min(self.settings.average_over, self._model.version // 10))
        self._average += (self._model.params - self._average) / np.float32(span)

    def client_memory(self) -> ClientMemory | None:
        """What the defense and the list of names take for clients; None if the defense does not say."""
        if not isinstance(self.defense, SaysMemory):
            return None
        return dataclasses.replace(self.defense.client_memory(), enrolled=NAME_BYTES)

    def state_dict(self) -> StateDict:
        """Everything, so that an equally configured machine goes on bit for bit."""
        return {**self._own_state(), **scoped("defense", self.defense.state_dict())}

    def state_view(self) -> StateView:
        """The same, of which the defense may read some when it is written: good until the next arrival."""
        kept = self.defense.state_view() if isinstance(self.defense, ViewsState) else self.defense.state_dict()
        return {**self._own_state(), **scoped("defense", {**kept})}

    def _own_state(self) -> StateDict:
        versions = self.held_versions
        distinct = {id(self._held[v].params): self._held[v].params for v in versions}
        places = {key: place for place, key in enumerate(distinct)}
        tickets = [(t.number, t.client, t.version) for t in self._tickets.values()]
        return {
            "version": np.array(self._model.version, np.int64),
            "next_ticket": np.array(self._next_ticket, np.int64),
            "tickets": np.array(tickets, np.int64).reshape(-1, 3),
            "held_versions": np.array(versions, np.int64),
            "held_places": np.array([places[id(self._held[v].params)] for v in versions], np.int64),
            "params": np.stack(list(distinct.values())),
            "average": self._average.copy(),
            "names": np.frombuffer(json.dumps(self._names).encode(), np.uint8).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over the state of an equally configured machine."""
        params = np.asarray(state["params"], np.float32)
        if params.shape[1:] != self._model.params.shape:
            raise StateError(f"saved model has {params.shape[1]} parameters; this one has {self._model.params.size}")
        arrays = [_frozen(row.copy()) for row in params]
        versions, places = (np.asarray(state[key]).tolist() for key in ("held_versions", "held_places"))
        self._held = {v: Model(v, arrays[place]) for v, place in zip(versions, places, strict=True)}
        self._model = self._held[int(np.asarray(state["version"], np.int64))]
        self._average = np.array(state["average"], np.float32)
        self._next_ticket = int(np.asarray(state["next_ticket"], np.int64))
        tickets = [Ticket(n, ClientId(c), v) for n, c, v in np.asarray(state["tickets"]).tolist()]
        self._tickets = {ticket.number: ticket for ticket in tickets}
        self._uses = Counter(ticket.version for ticket in tickets)
        self._names = json.loads(np.asarray(state["names"], np.uint8).tobytes())
        self._clients = {name: ClientId(place) for place, name in enumerate(self._names)}
        self.defense.load_state_dict(unscoped("defense", state))
        for name, client in self._clients.items():
            self._introduce(client, name)

    def _introduce(self, client: ClientId, name: str) -> None:
        if self._meet is not None and name != self.settings.upstream:
            self._meet(client, name)

    def _judge(self, ticket: Ticket, delta: Vector) -> Verdict:
        age = self._model.version - ticket.version
        if self.settings.max_staleness is not None and age > self.settings.max_staleness:
            return refuse(Reason.TOO_STALE, staleness=float(age))
        return self.defense.step(Update(ticket.client, self._held[ticket.version], delta), self._model)

    def _follow_upstream(self, ticket: Ticket, delta: Vector) -> Verdict:
        """Take the move of the server above as it is; it is refused only if it is no vector that one can add."""
        fault = Update(ticket.client, self._model, delta).fault(len(self._model.params))
        if fault is not None:
            return refuse(fault)
        evidence = {"norm": norm(delta), "staleness": float(self._model.version - ticket.version)}
        return Verdict(accepted=True, reason=Reason.FROM_ABOVE, direction=delta, evidence=evidence)

    def _close(self, ticket: Ticket) -> None:
        del self._tickets[ticket.number]
        self._uses[ticket.version] -= 1
        if self._uses[ticket.version] == 0:
            del self._uses[ticket.version]
            if ticket.version < self._model.version - self.settings.keep_recent:
                self._held.pop(ticket.version, None)

    def _release_passed(self) -> None:
        """Drop the versions that with this arrival nobody can refer to any more: one at most by each rule."""
        present, kept, limit = self._model.version, self.settings.keep_recent, self.settings.max_staleness
        passed = present - kept - 1
        if passed not in self._uses or (limit is not None and passed < present - limit):
            self._held.pop(passed, None)
        if limit is not None and limit >= kept:
            self._held.pop(present - limit - 1, None)


def _frozen(params: Vector) -> Vector:
    params.flags.writeable = False
    return params
