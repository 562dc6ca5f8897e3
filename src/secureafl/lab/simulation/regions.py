"""A federation of federations: each region has a server of its own, which is a client of one server above.

Region r serves clients r C, …, r C + C - 1 with a machine and a defense of its own. After `report_every` of their
updates it sends upward how far its model came from where it last followed the top,

    sent = w_r(followed) - w_r(now)        which points uphill, like what a client that trained locally sends

and then follows the top's newest model w:  w_r <- w.  The top judges what regions send with a defense of its own, and
moves by `top_lr` times what it makes of it. What a user gets is the top's model.

To a simulation all of this is one server. It counts arrivals of clients, whichever region they are of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from secureafl.defenses.base import Defense, HasInfluence, scoped, unscoped
from secureafl.errors import SecureAFLError
from secureafl.lab.simulation.trace import Trace
from secureafl.server import Machine, MachineSettings, Ticket
from secureafl.settings import Settings
from secureafl.types import Array, ClientId, Model, StateDict, Vector, Verdict

TOP = "top"
"""What regions call the server above them."""


class RegionsSettings(Settings):
    """How clients are grouped, and who judges the groups."""

    num_regions: int = Field(10, ge=2)
    """Regions; each has an equal share of the clients."""
    report_every: int = Field(10, ge=1)
    """Updates of its clients that a region judges before it reports to the top."""
    top_defense: str = "secureafl"
    """Which defense judges what regions send; the cell's `defense` judges what clients send, in every region."""
    top_defense_settings: dict[str, Any] = Field(default_factory=dict)
    """That defense's own settings."""
    top_lr: float = Field(0.2, gt=0.0)
    """The top's learning rate. Regions that are all at work send reports that overlap, so 1 is too much."""
    malicious_regions: int | None = Field(None, ge=1)
    """Regions that the malicious clients are in, in equal numbers; None spreads them over all."""


class Regions:
    """The top and its regions, with as much of a machine's face as a simulation looks at.

    Tickets of region r have the numbers r, r + R, r + 2 R, …; their versions are the region's own.
    """

    def __init__(self, top: Machine, regions: list[Machine], clients_each: int, report_every: int) -> None:
        self.top = top
        self.regions = regions
        self.reports = Trace()
        """What came of every report; regions stand in the place of clients."""
        self._clients_each = clients_each
        self._report_every = report_every
        self._num_arrivals = 0
        self._num_clients = 0
        self._unreported = [0] * len(regions)
        self._followed = [region.model.params for region in regions]
        self._above = [region.enrol(TOP) for region in regions]
        names = [f"region-{place}" for place in range(len(regions))]
        self._tickets = [top.issue(top.enrol(name)).number for name in names]

    @property
    def model(self) -> Model:
        """The top's present model, under the number of clients' updates that were judged so far."""
        return Model(self._num_arrivals, self.top.model.params)

    @property
    def published(self) -> Model:
        """The top's published model."""
        return Model(self._num_arrivals, self.top.published.params)

    @property
    def defense(self) -> Defense:
        """The one that judges regions."""
        return self.top.defense

    @property
    def settings(self) -> MachineSettings:
        """A region's: a client's update moves its region's model by this rate."""
        return self.regions[0].settings

    @property
    def num_clients(self) -> int:
        """Clients ever enrolled, in all regions."""
        return self._num_clients

    @property
    def roster(self) -> list[str]:
        """Names of all clients ever enrolled; a client's id is its place in this list."""
        return [name for region in self.regions for name in region.roster if name != TOP]

    def enrol(self, name: str) -> ClientId:
        """Enrol the next client, in the region that is its."""
        client = ClientId(self._num_clients)
        if client >= self._clients_each * len(self.regions):
            raise SecureAFLError(f"all {client} places are taken; regions know no clients that change their names")
        self._region(client).enrol(name)
        self._num_clients += 1
        return client

    def name_of(self, client: ClientId) -> str:
        """What the outside world calls this client."""
        return self._region(client).name_of(self._local(client))

    def region_of(self, client: int) -> int:
        """The region that this client is in."""
        return client // self._clients_each

    def issue(self, client: ClientId, version: int | None = None) -> Ticket:
        """Give the client its region's model. A version some arrivals back is the region's as many of its own back."""
        region = self._region(client)
        age = 0 if version is None else self._num_arrivals - version
        ticket = region.issue(self._local(client), max(0, region.model.version - age))
        return self._outer(self.region_of(client), ticket)

    def ticket(self, number: int) -> Ticket | None:
        local, place = divmod(number, len(self.regions))
        ticket = self.regions[place].ticket(local)
        return None if ticket is None else self._outer(place, ticket)

    def withdraw(self, number: int) -> None:
        local, place = divmod(number, len(self.regions))
        self.regions[place].withdraw(local)

    def model_of(self, ticket: Ticket) -> Model:
        """The region's model that this ticket was issued for."""
        region = self._region(ticket.client)
        return region.model_of(Ticket(ticket.number // len(self.regions), self._local(ticket.client), ticket.version))

    def receive(self, number: int, delta: Vector) -> Verdict:
        """Let the client's region judge its update, and report to the top if it is time."""
        local, place = divmod(number, len(self.regions))
        verdict = self.regions[place].receive(local, delta)
        self._num_arrivals += 1
        self._unreported[place] += 1
        if self._unreported[place] >= self._report_every:
            self._report(place)
        return verdict

    def influence(self) -> dict[ClientId, float] | None:
        """How far the top's model follows each client: its region's share, times its own in the region."""
        above = _influence(self.top)
        if above is None:
            return None
        found: dict[ClientId, float] = {}
        for place, region in enumerate(self.regions):
            within = _influence(region)
            if within is None:
                return None
            for local, share in within.items():
                client = ClientId(place * self._clients_each + local - 1)
                found[client] = above.get(ClientId(place), 0.0) * share
        return found

    def state_dict(self) -> StateDict:
        """Everything, so that an equally configured federation goes on bit for bit."""
        state: StateDict = {
            "num_arrivals": np.array(self._num_arrivals, np.int64),
            "unreported": np.array(self._unreported, np.int64),
            "followed": np.stack(self._followed),
            "tickets": np.array(self._tickets, np.int64),
            **scoped("top", self.top.state_dict()),
            **scoped("reports", self.reports.state_dict()),
        }
        for place, region in enumerate(self.regions):
            state |= scoped(f"region-{place}", region.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
        self._unreported = np.asarray(state["unreported"]).tolist()
        self._followed = list(np.array(state["followed"], np.float32))
        self._tickets = np.asarray(state["tickets"]).tolist()
        self.top.load_state_dict(unscoped("top", state))
        self.reports.load_state_dict(unscoped("reports", state))
        for place, region in enumerate(self.regions):
            region.load_state_dict(unscoped(f"region-{place}", state))

    def _report(self, place: int) -> None:
        """Send upward how far the region came, then follow the top to where it stands now."""
        region, number = self.regions[place], self._tickets[place]
        with np.errstate(over="ignore", invalid="ignore"):  # a region without a defense may diverge
            verdict = self.top.receive(number, self._followed[place] - region.model.params)
            self.reports.add(place, self._num_arrivals, 0, verdict)
            ahead = region.model.params - self.top.model.params
        self._tickets[place] = self.top.issue(ClientId(place)).number
        region.receive(region.issue(self._above[place]).number, ahead)
        self._followed[place] = region.model.params
        self._unreported[place] = 0

    def _region(self, client: ClientId) -> Machine:
        return self.regions[self.region_of(client)]

    def _local(self, client: ClientId) -> ClientId:
        """The client's entry in its region's roster, which the top stands at the head of."""
        return ClientId(client % self._clients_each + 1)

    def _outer(self, place: int, ticket: Ticket) -> Ticket:
        """A region's ticket as the simulation knows it."""
        client = ClientId(place * self._clients_each + ticket.client - 1)
        return Ticket(ticket.number * len(self.regions) + place, client, ticket.version)


def influence_of(server: Machine | Regions) -> Mapping[ClientId, float] | None:
    """Each client's share in a step of the model; None where this cannot be told."""
    return server.influence() if isinstance(server, Regions) else _influence(server)


def _influence(machine: Machine) -> Mapping[ClientId, float] | None:
    if not isinstance(machine.defense, HasInfluence):
        return None
    return machine.defense.influence(machine.model.params)
