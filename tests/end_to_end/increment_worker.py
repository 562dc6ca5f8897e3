"""Runs a journaled federation whose snapshots build on one another, resuming it if it was begun; made to be killed.

python -m tests.end_to_end.increment_worker RUN UNTIL ROWS
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from tests.support import Quadratic

from secureafl import Machine
from secureafl.server import FederationSettings, Run

NUM_CLIENTS = 60
PROBLEM = Quadratic(num_clients=NUM_CLIENTS, dim=3000)


def settings(run_dir: Path, rows: str) -> FederationSettings:
    return FederationSettings(
        run_dir=run_dir,
        client_returns="gradient",
        server_lr=0.01,
        snapshot_every=6,
        full_snapshot_every=5,
        rows=rows,  # type: ignore[arg-type]
        defense_settings={"max_seats": 50},
    )


def machine(chosen: FederationSettings) -> Machine:
    return Machine(chosen.make_defense(PROBLEM.dim, seed=2), np.zeros(PROBLEM.dim, np.float32), chosen.machine())


def advance(run: Run) -> None:
    """One arrival; its randomness depends on the version alone."""
    version = run.machine.model.version
    rng = np.random.default_rng(version)
    client = version if version < NUM_CLIENTS else int(rng.integers(NUM_CLIENTS))
    ticket = run.issue(f"client-{client}")
    run.receive(ticket.number, PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng))


def fingerprint(run: Run) -> str:
    total = hashlib.sha256()
    for key, value in sorted(run.machine.state_dict().items()):
        total.update(key.encode() + np.ascontiguousarray(value).tobytes())
    return total.hexdigest()


def main(run_dir: Path, until: int, rows: str) -> None:
    chosen = settings(run_dir, rows)
    begun = (run_dir / "run.db").exists()
    run = (Run.resume if begun else Run)(machine(chosen), chosen, facts=chosen.facts())
    while run.machine.model.version < until:
        advance(run)
    print(f"state {fingerprint(run)}", flush=True)  # noqa: T201
    sys.stdin.read()  # to be killed here, without a word to the run
    run.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
