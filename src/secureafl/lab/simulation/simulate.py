"""One federation in one process: honest clients, attackers, and the same server machine as in production.

A round is one arrival: the protocol says whose update comes and for which model, the client computes a mini-batch
gradient, an attacker replaces it, the machine judges it. Every draw has a stream of its own, keyed by seed, purpose,
client and round, so runs that differ in the defense or the attack alone are paired, and a restored run goes on bit for
bit without any generator's state.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from secureafl.defenses import SecureAFL
from secureafl.defenses.base import scoped, unscoped
from secureafl.lab.arrays import Indices
from secureafl.lab.attacks.attack import Attack, Batch, ChangesNames, TaskView, TriggerView, View, Watches
from secureafl.lab.simulation.identities import Identities
from secureafl.lab.simulation.private_clients import PrivateClients
from secureafl.lab.simulation.protocols import ArrivalProtocol, Server
from secureafl.lab.simulation.regions import Regions
from secureafl.lab.simulation.trace import Trace
from secureafl.lab.streams import stream
from secureafl.server import Machine
from secureafl.server.machine import Ticket
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.observer import RunObserver
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict
from secureafl.wire import Feedback, Wire, decompress, rounded


@dataclass(frozen=True, slots=True, eq=False)
class ClientData:
    """Everyone's share of one training set."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    shards: Sequence[Indices]
    batch_size: int

    def batch(self, indices: Indices) -> Batch:
        """These samples."""
        return Batch(np.asarray(self.x[indices]), np.asarray(self.y[indices]))

    def draw(self, client: ClientId, rng: np.random.Generator) -> Indices:
        """One mini-batch without repetition; a client with less data than that uses all of it."""
        shard = self.shards[client]
        size = min(self.batch_size, len(shard))
        return np.sort(shard[rng.choice(len(shard), size, replace=False)])


@dataclass(frozen=True, slots=True, eq=False)
class Attacker:
    """One attack and those who carry it out."""

    attack: Attack
    malicious: frozenset[ClientId]
    trigger: TriggerView
    target_label: int
    needs_shadow: bool
    """Whether the attack replicates SecureAFL; when another defense runs, that costs one SecureAFL step per arrival."""


@dataclass(slots=True)
class Stopwatch:
    """Where the time went, in seconds. Never part of the state: it is not reproducible."""

    gradient: float = 0.0
    """Honest clients'."""
    attack: float = 0.0
    """Malicious clients', whatever they compute."""
    server: float = 0.0
    total: float = 0.0
    num_rounds: int = 0


class Simulation:
    """Advances by one arrival per `step`. `server` takes the calls that change the machine: itself, or a recorder."""

    def __init__(
        self,
        *,
        task: TaskView,
        data: ClientData,
        machine: Machine | Regions,
        protocol: ArrivalProtocol,
        seed: int,
        attacker: Attacker | None = None,
        server: Server | None = None,
        wire: Wire = "float32",
        private: PrivateClients | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.task = task
        self.data = data
        self.machine = machine
        self.server: Server = server or machine
        self.protocol = protocol
        self.attacker = attacker
        self.trace = Trace()
        self.stopwatch = Stopwatch()
        self.observer: RunObserver | None = None
        self._seed = seed
        self.private = private
        self._wire = wire
        self._feedback: dict[ClientId, Feedback] = {}
        self._clock = clock
        self._updates: dict[ClientId, Vector] = {}
        self._identities = Identities(machine, self.server, len(data.shards))
        defense = machine.defense
        self._shadow = defense if isinstance(defense, SecureAFL) else SecureAFL(len(machine.model.params))
        self._feed_shadow = self._shadow is not defense and attacker is not None and attacker.needs_shadow

    def step(self) -> Verdict:
        """One arrival."""
        began = self._clock()
        ticket = self.protocol.next(self._identities)
        client, held, present = (
            self._identities.client_of(ticket.client),
            self.machine.model_of(ticket),
            self.machine.model,
        )
        base = self._as_received(held)
        indices = (self.private or self.data).draw(client, stream(self._seed, f"batch/{client}", present.version))
        batch = self.data.batch(indices)
        start = computed = self._clock()
        if self.attacker is not None and client in self.attacker.malicious:
            update = self.attacker.attack.update(self._view(self.attacker, ticket.client, base, batch))
        else:
            update = self._honest_update(client, base, batch, present.version)
            computed = self._clock()
        update = self._as_sent(client, update)
        if self._feed_shadow:
            self._shadow.step(Update(ticket.client, held, update), present)
        attacked = self._clock()
        verdict = self.server.receive(ticket.number, update)
        judged = self._clock()
        if self.attacker is not None:
            self._learn(self.attacker, ticket.client, update, verdict)
        self.trace.add(client, base.version, zlib.crc32(indices.tobytes()), verdict)
        if self.observer is not None:
            self._tell(self.observer, ticket, present.version, verdict, judged - attacked)
        watch = self.stopwatch
        watch.gradient += computed - start
        watch.attack += attacked - computed
        watch.server += judged - attacked
        watch.total += self._clock() - began
        watch.num_rounds += 1
        return verdict

    def _honest_update(self, client: ClientId, base: Model, batch: Batch, version: int) -> Vector:
        if self.private is None:
            return self.task.gradient(base.params, batch.x, batch.y)
        return self.private.gradient(base.params, batch.x, batch.y, stream(self._seed, f"privacy/{client}", version))

    def _as_received(self, model: Model) -> Model:
        """The model as it reaches a client."""
        return model if self._wire == "float32" else Model(model.version, rounded(model.params))

    def _as_sent(self, client: ClientId, update: Vector) -> Vector:
        """The update as it reaches the server, from honest and malicious clients alike."""
        if self._wire == "float32":
            return update
        compressed = self._feedback.setdefault(client, Feedback(self._wire)).compress(update)
        if compressed is None:
            return update
        arrived = decompress(compressed, len(update))
        assert not isinstance(arrived, Reason)
        return arrived

    def _learn(self, attacker: Attacker, name: ClientId, update: Vector, verdict: Verdict) -> None:
        """Tell the attackers what came of an arrival, and let them act on it."""
        client, attack = self._identities.client_of(name), attacker.attack
        self._updates[name] = update
        attack.observe(self.machine.model)
        if client not in attacker.malicious:
            if isinstance(attack, Watches):
                attack.watch(name, update)
        elif isinstance(attack, ChangesNames) and attack.leaves_name(verdict):
            del self._updates[name]  # what an abandoned name sent is of no use to anyone
            self._identities.rename(client)

    def _tell(self, observer: RunObserver, ticket: Ticket, version: int, verdict: Verdict, seconds: float) -> None:
        """The row that a journal would hold."""
        client, reason = self.machine.name_of(ticket.client), str(verdict.reason)
        observer.row(
            Entry(
                self.stopwatch.total,
                version,
                client,
                Event.ARRIVAL,
                reason,
                verdict.accepted,
                verdict.evidence,
                ticket.number,
                ticket.version,
            )
        )
        observer.took("step", seconds)

    def state_dict(self) -> StateDict:
        """Everything but the data, so that an equally configured simulation goes on bit for bit."""
        state: StateDict = {
            **scoped("machine", self.machine.state_dict()),
            **scoped("protocol", self.protocol.state_dict()),
            **scoped("trace", self.trace.state_dict()),
        }
        if self.attacker is not None:
            state |= scoped("attack", self.attacker.attack.state_dict())
            if isinstance(self.attacker.attack, ChangesNames):
                state |= scoped("identities", self._identities.state_dict())
            dim = len(self.machine.model.params)
            state["uploads.clients"] = np.array(list(self._updates), np.int64)
            rows = list(self._updates.values())
            state["uploads.rows"] = np.stack(rows) if rows else np.empty((0, dim), np.float32)
        if self._feed_shadow:
            state |= scoped("shadow", self._shadow.state_dict())
        residuals = {f"residual.{client}": feedback.residual for client, feedback in self._feedback.items()}
        return state | {name: residual for name, residual in residuals.items() if residual is not None}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.machine.load_state_dict(unscoped("machine", state))
        self.protocol.load_state_dict(unscoped("protocol", state))
        self.trace.load_state_dict(unscoped("trace", state))
        if self.attacker is not None:
            self.attacker.attack.load_state_dict(unscoped("attack", state))
            if isinstance(self.attacker.attack, ChangesNames):
                self._identities.load_state_dict(unscoped("identities", state))
            clients, rows = np.asarray(state["uploads.clients"]).tolist(), np.asarray(state["uploads.rows"])
            self._updates = {ClientId(client): row.copy() for client, row in zip(clients, rows, strict=True)}
        if self._feed_shadow:
            self._shadow.load_state_dict(unscoped("shadow", state))
        residuals = unscoped("residual", state)
        self._feedback = {
            ClientId(int(client)): Feedback(self._wire, np.array(residual, np.float32))
            for client, residual in residuals.items()
        }

    def _view(self, attacker: Attacker, name: ClientId, base: Model, batch: Batch) -> View:
        client, present = self._identities.client_of(name), self.machine.model
        further = stream(self._seed, f"attack-batch/{client}", present.version)

        def draw_batch() -> Batch:
            return self.data.batch(self.data.draw(client, further))

        def benign_gradients() -> dict[ClientId, Vector]:
            honest = [ClientId(k) for k in range(len(self.data.shards)) if k not in attacker.malicious]
            draws = {k: self.data.draw(k, stream(self._seed, f"fresh/{k}", present.version)) for k in honest}
            batches = {k: self.data.batch(indices) for k, indices in draws.items()}
            return {k: self.task.gradient(base.params, x, y) for k, (x, y) in batches.items()}

        return View(
            round=present.version,
            client=name,
            base=base,
            model=present,
            server_lr=self.machine.settings.server_lr,
            num_clients=len(self.data.shards),
            rng=stream(self._seed, f"attack/{client}", present.version),
            batch=batch,
            task=self.task,
            updates=self._updates,
            malicious=self._identities.names_of(attacker.malicious),
            shadow=self._shadow,
            trigger=attacker.trigger,
            target_label=attacker.target_label,
            honest_gradient=lambda: self.task.gradient(base.params, batch.x, batch.y),
            draw_batch=draw_batch,
            benign_gradients=benign_gradients,
        )
