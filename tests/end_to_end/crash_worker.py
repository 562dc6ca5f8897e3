"""Runs a journaled federation to its end, resuming if it was begun; made to be killed at any instant.

python -m tests.end_to_end.crash_worker RUN NUM_ARRIVALS [LEASE_SECONDS]
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from tests.support import Quadratic

from secureafl import Machine, MachineSettings
from secureafl.server.record.address import Place, parse_place, store_of
from secureafl.server.record.run import Run, StoreSettings

PROBLEM = Quadratic(num_clients=10, dim=20_000)
FACTS: dict[str, object] = {"defense": "secureafl"}


def machine() -> Machine:
    defense = PROBLEM.defense("secureafl")
    return Machine(defense, np.zeros(PROBLEM.dim, np.float32), MachineSettings(server_lr=0.05, keep_recent=5))


def advance(run: Run) -> None:
    """One arrival; its randomness depends on the version alone."""
    version = run.machine.model.version
    rng = np.random.default_rng(version)
    client = int(rng.integers(PROBLEM.num_clients))
    ticket = run.issue(f"client-{client}", int(rng.integers(max(0, version - 5), version + 1)))
    run.receive(ticket.number, PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng))


def fingerprint(run: Run) -> str:
    total = hashlib.sha256()
    for key, value in sorted(run.machine.state_dict().items()):
        if key != "next_ticket":  # a ticket issued, but not durable, when the server died is numbered again
            total.update(key.encode() + np.ascontiguousarray(value).tobytes())
    return total.hexdigest()


def main(place: Place, num_arrivals: int, lease_seconds: float = 10.0) -> None:
    settings = StoreSettings(run_dir=place, snapshot_every=7, lease_seconds=lease_seconds)
    begun = store_of(place).has_run()
    run = Run.resume(machine(), settings, facts=FACTS) if begun else Run(machine(), settings, facts=FACTS)
    print(f"at {run.machine.model.version}", flush=True)  # noqa: T201
    while run.machine.model.version < num_arrivals:
        advance(run)
        if run.machine.model.version % 10 == 0:
            print(f"at {run.machine.model.version}", flush=True)  # noqa: T201
    print(f"state {fingerprint(run)}", flush=True)  # noqa: T201
    run.close()


if __name__ == "__main__":
    main(parse_place(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
