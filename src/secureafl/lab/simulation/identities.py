"""Under which name each simulated client is known to the server.

Protocols, data and random streams count clients 0, 1, …, n - 1. The server counts names, in the order in which it hears
of them. Both are the same, unless a malicious client comes back under a new name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from secureafl.lab.simulation.protocols import Server
from secureafl.lab.simulation.regions import Regions
from secureafl.server import Machine, Ticket
from secureafl.types import Array, ClientId, Model, StateDict, Vector, Verdict


class Identities:
    """Stands between a protocol and its server: issues each client's tickets under its present name."""

    def __init__(self, machine: Machine | Regions, server: Server, num_clients: int) -> None:
        self._machine = machine
        self._server = server
        self._client_of: dict[ClientId, ClientId] = {}
        self._present: list[ClientId] = []
        for client in range(num_clients):
            self._present.append(self._enrol(ClientId(client)))

    def client_of(self, name: ClientId) -> ClientId:
        """Who is behind this entry of the server's roster."""
        return self._client_of[name]

    def names_of(self, clients: Collection[ClientId]) -> frozenset[ClientId]:
        """Everything that these clients are and were enrolled as."""
        return frozenset(name for name, client in self._client_of.items() if client in clients)

    def rename(self, client: ClientId) -> None:
        """Enrol the client under a name that the server has not heard."""
        self._present[client] = self._enrol(client)

    def _enrol(self, client: ClientId) -> ClientId:
        name = self._machine.enrol(f"client-{len(self._client_of)}")
        self._client_of[name] = client
        return name

    @property
    def model(self) -> Model:
        return self._server.model

    def ticket(self, number: int) -> Ticket | None:
        return self._server.ticket(number)

    def issue(self, client: ClientId, version: int | None = None) -> Ticket:
        return self._server.issue(self._present[client], version)

    def withdraw(self, number: int) -> None:
        self._server.withdraw(number)

    def receive(self, number: int, delta: Vector) -> Verdict:
        return self._server.receive(number, delta)

    def state_dict(self) -> StateDict:
        """Who is behind each entry of the roster; the last one is a client's present name."""
        return {"clients": np.array(list(self._client_of.values()), np.int64)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        clients = [ClientId(client) for client in np.asarray(state["clients"]).tolist()]
        self._client_of = {ClientId(name): client for name, client in enumerate(clients)}
        for name, client in self._client_of.items():
            self._present[client] = name
