"""The arrivals that every golden record was made of: 16 clients, 400 arrivals, everything that can go wrong with them.

Three clients are malicious: one reverses and amplifies, two send the same vector of their own. Some updates are
malformed, some come too late, some tickets are withdrawn. All of it follows from one seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.support import Quadratic

from secureafl import Machine, MachineSettings, Vector, Verdict
from secureafl.defenses import DEFENSES, PAPER, PAPER_VARIANTS
from secureafl.types import Reason

RECORDS = Path(__file__).parent / "records"
NUM_CLIENTS, DIM, ARRIVALS = 16, 600, 400
SERVER_LR, MAX_STALENESS = 0.05, 8
DIGITS = 12  # of a hash: enough to tell any two models apart

SINCE = {"shortened_to", "change_shortened_to"}
"""Evidence that is newer than the records. It says more of a verdict and changes none."""

MEDIAN = {"aggregate": "median"}
HALF = {"history_dtype": "float16", "refresh_interval": 50}
CONFIGURATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, {}) for name in DEFENSES},
    "asyncdefender": ("asyncdefender", {"num_first": 10}),
    "secureafl-median": ("secureafl", MEDIAN),
    "secureafl-published": ("secureafl", PAPER),
    "secureafl-bounded": ("secureafl", {**MEDIAN, "correction": "bounded"}),
    "secureafl-calibrated": ("secureafl", {**MEDIAN, "correction": "calibrated"}),
    "secureafl-float16": ("secureafl", {**MEDIAN, "history_dtype": "float16"}),
    "secureafl-float16-calibrated": ("secureafl", {**MEDIAN, **HALF, "correction": "calibrated"}),
    "secureafl-float16-published": ("secureafl", {**PAPER, **HALF}),
    "secureafl-trimmed-mean": ("secureafl", {"aggregate": "trimmed_mean"}),
    "secureafl-bucket-3": ("secureafl", {**MEDIAN, "bucket": 3}),
    "secureafl-strict": (
        "secureafl",
        {**MEDIAN, "opposition": 1.0, "alike": 0.2, "agreement_decay": 0.5, "window": 60},
    ),
    "secureafl-history-all": ("secureafl", {**PAPER, "history": "all", "warmup_rounds": 20}),
    **{f"secureafl-variant-{key}": ("secureafl", {**MEDIAN, **changes}) for key, changes in PAPER_VARIANTS.items()},
    **{f"secureafl-published-{key}": ("secureafl", {**PAPER, **changes}) for key, changes in PAPER_VARIANTS.items()},
}
"""Name of the record -> defense and its settings. `secureafl-variant-I` is the mean in place of the median."""


@dataclass(slots=True)
class Record:
    """What a configuration made of the arrivals."""

    arrivals: list[str]
    """Hash of the model after each one, and why it was accepted or not."""
    evidence: str
    """Hash of all numbers behind the verdicts, but for those in `SINCE`."""
    state: dict[str, str]
    """Hash of each array of the final state."""
    sample: list[float]
    """Some coordinates of the final model, for machines on which BLAS rounds otherwise."""
    rounding: str
    """Hash of what such a library makes of fixed numbers; equal hashes promise equal bits."""


def play(configuration: str) -> Record:
    """Run the arrivals and write down what happens."""
    name, settings = CONFIGURATIONS[configuration]
    problem = Quadratic(num_clients=NUM_CLIENTS, dim=DIM, noise=0.3, seed=5)
    defense = problem.defense(name, **settings)
    machine = Machine(
        defense,
        np.zeros(DIM, np.float32),
        MachineSettings(server_lr=SERVER_LR, max_staleness=MAX_STALENESS, keep_recent=5, count_refused=True),
    )
    clients = [machine.enrol(f"client-{k}") for k in range(NUM_CLIENTS)]
    lines: list[str] = []
    rng = np.random.default_rng(11)
    wish = np.random.default_rng(12).normal(size=DIM).astype(np.float32)
    evidence = hashlib.sha256()
    late: list[tuple[int, int, Vector]] = []  # (when, ticket, delta)
    while machine.model.version < ARRIVALS:
        now = machine.model.version
        k = int(rng.integers(min(NUM_CLIENTS, 2 + now // 3)))  # clients join one after the other
        ticket = machine.issue(clients[k], int(rng.integers(max(0, now - 5), now + 1)))
        delta = _sent(problem, k, machine.model_of(ticket).params, wish, rng)
        fate = float(rng.random())
        if fate < 0.08:
            late.append((now + int(rng.integers(1, 15)), ticket.number, delta))
            continue
        if fate < 0.10:
            machine.withdraw(ticket.number)
            continue
        verdict = _deliver(machine, ticket.number, delta, fate)
        _write(lines, evidence, machine, verdict)
        for item in [item for item in late if item[0] <= now and machine.model.version < ARRIVALS]:
            late.remove(item)
            _write(lines, evidence, machine, machine.receive(item[1], item[2]))
    state = {key: digest(value) for key, value in sorted(machine.state_dict().items())}
    sample = [float(x) for x in machine.model.params[:: DIM // 12]]
    return Record(lines, evidence.hexdigest()[:DIGITS], state, sample, rounding())


def digest(array: np.ndarray[Any, Any]) -> str:
    """A hash of an array's type, shape and numbers."""
    total = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:DIGITS]


def rounding() -> str:
    """How this machine's libraries round sums, inverses and exponentials, which processors do differently."""
    rng = np.random.default_rng(1)
    vectors, matrix = rng.normal(size=(2, DIM)), rng.normal(size=(6, 6))
    products = np.einsum("nij,nj->ni", rng.normal(size=(4, 6, 6)), rng.normal(size=(4, 6)))
    found = [vectors[0] @ vectors[1], np.linalg.inv(matrix), np.linalg.cond(matrix), products]
    found += [np.tanh(vectors), np.exp(vectors), np.linalg.norm(vectors.astype(np.float32), axis=1)]
    return digest(np.concatenate([np.ravel(np.asarray(one, np.float64)) for one in found]))


def _sent(problem: Quadratic, client: int, params: Vector, wish: Vector, rng: np.random.Generator) -> Vector:
    honest = problem.noisy_gradient(client, params, rng)
    if client == 0:
        return np.asarray(-3 * honest, np.float32)
    return np.asarray(wish + np.float32(0.1) * honest, np.float32) if client in {3, 4} else honest


def _deliver(machine: Machine, number: int, delta: Vector, fate: float) -> Verdict:
    if fate > 0.99:
        return machine.refuse(number, Reason.MALFORMED)
    if fate > 0.97:
        return machine.receive(number, np.where(np.arange(DIM) == 7, np.nan, delta).astype(np.float32))
    if fate > 0.96:
        return machine.receive(number, delta[:-1])
    if fate > 0.95:
        return machine.receive(number, delta.astype(np.float64))
    return machine.receive(number, delta)


def _write(lines: list[str], evidence: Any, machine: Machine, verdict: Verdict) -> None:
    lines.append(f"{digest(machine.model.params)} {verdict.reason}")
    numbers = {name: value for name, value in verdict.evidence.items() if name not in SINCE}
    evidence.update(json.dumps(numbers, sort_keys=True).encode())
