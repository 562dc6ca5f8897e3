"""Recorded federations on a quadratic, for tests of what can be made of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.support import Quadratic

from secureafl import Machine, MachineSettings, Reason, Vector
from secureafl.server.record.address import Place
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.opened import RecordedRun
from secureafl.wire import CompressedUpdate, Feedback, Reply, Wire, decompress

PROBLEM = Quadratic(num_clients=8, dim=12, noise=0.02, spread=0.1)
LIARS = (0, 1)
NAMES = [f"client-{k}" for k in range(PROBLEM.num_clients)]
SERVER_LR = 0.05
MAX_DELAY = 4


def record(
    run_dir: Place,
    num_arrivals: int,
    *,
    defense: str = "secureafl",
    liars: tuple[int, ...] = LIARS,
    strength: float = -10.0,
    names: Sequence[str] = NAMES,
    wire: Wire = "float32",
    **kept: Any,
) -> RecordedRun:
    """A run by the paper's protocol whose liars send `strength` times the truth; `kept` says how much is recorded. With
    another wire, odd clients compress their updates.
    """
    settings = MachineSettings(server_lr=SERVER_LR, keep_recent=MAX_DELAY)
    machine = Machine(PROBLEM.defense(defense), np.zeros(PROBLEM.dim, np.float32), settings)
    facts = {
        "defense": defense,
        "defense_settings": {},
        "server_lr": SERVER_LR,
        "max_staleness": None,
        "average_over": 200,
        "keep_recent": MAX_DELAY,
        "wire": wire,
    }
    feedback = {client: Feedback(wire) for client in range(1, PROBLEM.num_clients, 2)}
    run = Run(machine, StoreSettings(run_dir=run_dir, snapshot_every=50, **kept), facts=facts)
    for number in range(num_arrivals):
        rng, version = np.random.default_rng(number), machine.model.version
        client = int(rng.integers(PROBLEM.num_clients))
        ticket = run.issue(names[client], int(rng.integers(max(0, version - MAX_DELAY), version + 1)))
        delta = PROBLEM.noisy_gradient(client, machine.model_of(ticket).params, rng)
        sent = (delta * strength if client in liars else delta).astype(np.float32)
        update: Reply = sent
        if wire != "float32" and client in feedback:
            update = compressed(sent, feedback[client])
        run.receive(ticket.number, update)
    run.close()
    return RecordedRun.open(run_dir)


def compressed(update: Vector, feedback: Feedback) -> CompressedUpdate:
    """The update as a server that offers another wire reads it."""
    made = feedback.compress(update)
    assert made is not None
    delta = decompress(made, len(update))
    assert not isinstance(delta, Reason)
    return CompressedUpdate(delta, made)


def distance(params: np.ndarray) -> float:
    return float(np.linalg.norm(params - PROBLEM.optimum))
