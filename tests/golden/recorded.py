"""The run that 0.1.0 left on disk in `run-0.1.0/`, and how it goes on.

14 clients, 3 of them malicious; a server that died after 130 arrivals, 30 behind its last snapshot. Made once, with
0.1.0, by `go_on`. What 0.1.0 itself made of the next 70 arrivals is in `run-0.1.0.json`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from tests.support import Quadratic

from secureafl import Machine, Reason, Vector
from secureafl.server import FederationSettings
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Origin, Run

FOLDER = Path(__file__).parent / "run-0.1.0"
EXPECTED = Path(__file__).parent / "run-0.1.0.json"
PROBLEM = Quadratic(num_clients=14, dim=20, noise=0.3, seed=3)
MALICIOUS = (0, 1, 2)
BEGUN, ENDED = 130, 200


def settings(run_dir: Path) -> FederationSettings:
    return FederationSettings(
        run_dir=run_dir,
        defense_settings={"aggregate": "median"},  # the default of 0.1
        client_returns="gradient",
        server_lr=0.05,
        max_staleness=20,
        snapshot_every=50,
    )


def machine(run_dir: Path) -> Machine:
    chosen, origin = settings(run_dir), Origin.on_record(run_dir)
    defense = chosen.make_defense(PROBLEM.dim, seed=origin.seed)
    start = np.zeros(PROBLEM.dim, np.float32)
    return Machine(defense, start, chosen.machine(count_refused=origin.count_refused))


def resume(run_dir: Path) -> Run:
    return Run.resume(machine(run_dir), settings(run_dir), facts=settings(run_dir).facts())


def go_on(run: Run, until: int) -> None:
    """Arrivals whose randomness depends on the version alone."""
    while (version := run.machine.model.version) < until:
        rng = np.random.default_rng(version)
        client = int(rng.integers(PROBLEM.num_clients))
        ticket = run.issue(f"client-{client}")
        delta: Vector | Reason = _sent(client, run.machine.model_of(ticket).params, rng)
        if version % 13 == 5:
            delta = Reason.MALFORMED
        elif version % 17 == 3:
            delta = np.full(PROBLEM.dim, np.nan, np.float32)
        if version % 7 == 1:
            run.withdraw(run.issue("client-9").number, Event.EXPIRED, "no answer in 60 s")
        if version % 40 == 22:
            run.note("client-5", Event.LEFT, "push refused")
            run.note("client-5", Event.RETURNED)
        run.receive(ticket.number, delta)
        if version % 25 == 4:
            run.receive(ticket.number, np.zeros(PROBLEM.dim, np.float32))  # sent twice


def fingerprint(machine: Machine) -> str:
    """A hash of what the machine knows apart from its defense: model, average, tickets, roster."""
    total = hashlib.sha256()
    for key, value in sorted(machine.state_dict().items()):
        if not key.startswith("defense."):
            total.update(key.encode() + np.ascontiguousarray(value).tobytes())
    return total.hexdigest()


def _sent(client: int, params: Vector, rng: np.random.Generator) -> Vector:
    honest = PROBLEM.noisy_gradient(client, params, rng)
    if client not in MALICIOUS:
        return honest
    mean = np.mean([PROBLEM.gradient(k, params) for k in range(PROBLEM.num_clients)], axis=0)
    return np.asarray(-2 * mean, np.float32)
