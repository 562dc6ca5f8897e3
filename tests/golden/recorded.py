"""Runs that released versions left on disk, and how they go on.

14 clients, 3 of them malicious; a server that died after 130 arrivals, 30 behind its last snapshot. Each was made once,
by its own version, with `go_on`. What that version itself made of the next 70 arrivals is in the file beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.golden.scenario import digest, rounding
from tests.support import Quadratic

from secureafl import Machine, Reason, Vector
from secureafl.engines.engine_settings import EngineSettings
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Origin, Run
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun
from secureafl.wire import CompressedUpdate, Reply, Wire, compress, decompress

HERE = Path(__file__).parent
PROBLEM = Quadratic(num_clients=14, dim=20, noise=0.3, seed=3)
MALICIOUS = (0, 1, 2)
BEGUN, ENDED = 130, 200
SECRET = 20_261_119


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run in a folder of its own, by the version that wrote it."""

    name: str
    version: str
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the defense with which this version goes on with it."""
    wire: Wire = "float32"

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def expected(self) -> Path:
        return HERE / f"{self.name}.json"

    def settings(self, run_dir: Path) -> EngineSettings:
        return EngineSettings(
            run_dir=run_dir,
            defense_settings=dict(self.own),
            client_returns="gradient",
            server_lr=0.05,
            max_staleness=20,
            snapshot_every=50,
            keep_snapshots=1,
            wire=self.wire,
        )

    def machine(self, run_dir: Path, origin: Origin) -> Machine:
        chosen = self.settings(run_dir)
        defense = chosen.make_defense(PROBLEM.dim, seed=origin.seed)
        return Machine(defense, np.zeros(PROBLEM.dim, np.float32), chosen.machine(count_refused=origin.count_refused))

    def begin(self, run_dir: Path) -> Run:
        """The same run anew, in this version."""
        chosen, origin = self.settings(run_dir), Origin(SECRET)
        return Run(self.machine(run_dir, origin), chosen, facts={**chosen.facts(), "seed": origin.seed})

    def resume(self, run_dir: Path) -> Run:
        chosen, origin = self.settings(run_dir), Origin.on_record(run_dir)
        facts = {**chosen.facts(), "seed": origin.seed}
        return Run.resume(self.machine(run_dir, origin), chosen, facts=facts)

    def go_on(self, run: Run, until: int) -> None:
        """Arrivals whose randomness depends on the version alone."""
        while (version := run.machine.model.version) < until:
            rng = np.random.default_rng(version)
            client = int(rng.integers(PROBLEM.num_clients))
            ticket = run.issue(f"client-{client}")
            delta = self._as_it_came(client, _sent(client, run.machine.model_of(ticket).params, rng))
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
            if run.machine.model.version == version:  # refused, and no arrival: another client is heard
                ticket = run.issue("client-11")
                sent = _sent(11, run.machine.model_of(ticket).params, rng)
                run.receive(ticket.number, self._as_it_came(11, sent))
            if version % 25 == 4:
                run.receive(ticket.number, np.zeros(PROBLEM.dim, np.float32))  # sent twice

    def _as_it_came(self, client: int, delta: Vector) -> Reply:
        """With another wire, odd clients compress."""
        if self.wire == "float32" or client % 2 == 0:
            return delta
        sent = compress(delta, self.wire)
        read = decompress(sent, PROBLEM.dim)
        assert not isinstance(read, Reason)
        return CompressedUpdate(read, sent)


RUNS = (
    Recorded("run-0.1.0", "0.1.0", {"aggregate": "median"}),  # the default of 0.1
    Recorded("run-0.1.0-sketch-seed", "0.1.0", {"aggregate": "median", "sketch_seed": 9, "exclude_after": 4}),
    Recorded("run-0.2.0", "0.2.0"),
    Recorded("run-0.2.0-bfloat16", "0.2.0", wire="bfloat16"),
)
"""`run-0.1.0-sketch-seed` was recorded with `silence_after`, and with `memory = 5`, which changed nothing."""


def written(run: Run, audited: Path, at_resume: str) -> dict[str, Any]:
    """What is expected of a later version: of the run that went on, and of the one that was left, in its folder."""
    with RecordedRun.open(audited) as found:
        audit = {record.client: record.summary() for record in client_records(found)}
    return {
        "rounding": rounding(),
        "at_resume": at_resume,
        "at_end": fingerprint(run.machine),
        "model": run.machine.model.params.tolist(),
        "defense": {key: digest(value) for key, value in sorted(run.machine.defense.state_dict().items())},
        "audit": json.loads(json.dumps(audit)),
    }


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
