"""A small asynchronous federation on a quadratic, for tests that need a stream of arrivals.

Client k minimises (w - optimum_k)^T diag(curvature_k) (w - optimum_k) / 2 and reports noisy gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from secureafl.defenses import Defense, Score, build_defense
from secureafl.server import Machine, MachineSettings
from secureafl.types import ClientId, Model, Vector, Verdict


@dataclass
class Quadratic:
    """The problem; `gradient` is exact, `noisy_gradient` what an honest client sends."""

    num_clients: int = 7
    dim: int = 12
    noise: float = 0.1
    spread: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng([self.seed, 0])
        self.optimum = rng.normal(size=self.dim)
        self.optima = self.optimum + self.spread * rng.normal(size=(self.num_clients, self.dim))
        self.curvatures = rng.uniform(0.5, 2.0, size=(self.num_clients, self.dim))

    def gradient(self, client: int, params: Vector) -> Vector:
        """The exact gradient of one client."""
        return np.asarray(self.curvatures[client] * (params - self.optima[client]), np.float32)

    def noisy_gradient(self, client: int, params: Vector, rng: np.random.Generator) -> Vector:
        """What an honest client sends."""
        noise = self.noise * rng.normal(size=self.dim)
        return np.asarray(self.gradient(client, params) + noise, np.float32)

    def reference(self, model: Model) -> Vector:
        """A trusted gradient: the mean over all clients, exact."""
        return np.asarray(
            np.mean([self.gradient(k, model.params) for k in range(self.num_clients)], axis=0), np.float32
        )

    def score(self, params: Vector) -> Score:
        """Stands in for trusted data: the loss is the distance, the entropy grows with it up to ln 10."""
        distance = float(np.linalg.norm(params - self.optimum))
        return Score(loss=distance, entropy=float(np.log(10.0) * np.tanh(distance)))

    def defense(self, name: str, server_lr: float = 0.05, /, **settings: object) -> Defense:
        """The defense called `name`, with trusted data if it needs some."""
        return build_defense(name, self.dim, settings, server_lr=server_lr, reference=self.reference, score=self.score)


class QuadraticFederation:
    """Drives a machine by the paper's protocol: a random client answers for a random recent version."""

    def __init__(
        self,
        problem: Quadratic,
        defense: Defense,
        *,
        seed: int = 0,
        server_lr: float = 0.05,
        max_delay: int = 5,
        malicious: frozenset[int] = frozenset(),
        attack: Callable[[Vector], Vector] = np.negative,
    ) -> None:
        self.problem = problem
        self.machine = Machine(
            defense,
            np.zeros(problem.dim, np.float32),
            MachineSettings(server_lr=server_lr, keep_recent=max_delay),
        )
        self.max_delay = max_delay
        self.malicious = malicious
        self.attack = attack
        self.seed = seed
        for k in range(problem.num_clients):
            self.machine.enrol(f"client-{k}")

    def arrive(self) -> tuple[int, Verdict]:
        """One arrival; its randomness depends on the seed and the version alone, so a restored run sees the same."""
        version = self.machine.model.version
        rng = np.random.default_rng([self.seed, 1, version])
        client = int(rng.integers(self.problem.num_clients))
        base = int(rng.integers(max(0, version - self.max_delay), version + 1))
        ticket = self.machine.issue(ClientId(client), base)
        delta = self.problem.noisy_gradient(client, self.machine.model_of(ticket).params, rng)
        if client in self.malicious:
            delta = self.attack(delta)
        return client, self.machine.receive(ticket.number, delta)

    def run(self, num_arrivals: int) -> list[tuple[int, Verdict]]:
        """So many arrivals: who sent what came of it."""
        return [self.arrive() for _ in range(num_arrivals)]

    @property
    def distance(self) -> float:
        """How far the model is from the optimum."""
        return float(np.linalg.norm(self.machine.model.params - self.problem.optimum))
