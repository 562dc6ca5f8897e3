"""What both engines measure: the same federation with SecureAFL's step and with a step that does nothing, in turn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secureafl import ClientId, Model, SecureAFL, Update, Verdict
from secureafl.defenses import Defense
from secureafl.server import Result
from secureafl.types import Array, NamedArrays, StateDict

FIRST_STRANGER = 10_000  # ids of clients that are known but never answer
FIRST_UPDATES = 20
STEPS = ("bare", "secureafl")
MARKERS = ("FLOWER_PROCESSES=", "NVFLARE_PROCESSES=")


class Nothing:
    """A server step that does nothing: what the bare engine can do."""

    def step(self, update: Update, model: Model) -> Verdict:
        return Verdict(True, "accepted")

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""


def moved(arrays: NamedArrays) -> NamedArrays:
    """What a client returns that does next to nothing: the engine is what is measured."""
    noise = np.random.default_rng().standard_normal(arrays["w"].size, np.float32)
    return {"w": (arrays["w"] + np.float32(0.01) * (1.0 + 0.1 * noise)).astype(np.float32)}


def initial_model(dim: int) -> NamedArrays:
    return {"w": np.zeros(dim, np.float32)}


def measure(
    federate: Callable[[Defense, Mapping[str, float]], Result],
    *,
    seconds: float,
    dim: int,
    num_known: int,
    repeats: int,
    server_lr: float,
) -> dict[str, Any]:
    """Updates per second, CPU-seconds per update of all processes of the run, and updates per client, per phase.

    `federate` runs a federation with this defense until one of these settings stops it.
    """
    made: dict[str, Defense] = {"bare": Nothing(), "secureafl": warmed_up(dim, num_known, server_lr)}
    found: dict[str, Any] = {"rates": {name: [] for name in made}, "cpu": {name: [] for name in made}}
    for defense in made.values():  # processes start, kernels are loaded
        federate(defense, {"stop_after_updates": FIRST_UPDATES, "stop_after_seconds": 300.0})
    for turn in range(repeats):
        for name, defense in sorted(made.items(), reverse=turn % 2 == 1):  # whoever comes first gains nothing by it
            cpu, start = cpu_seconds(), time.monotonic()
            result = federate(defense, {"stop_after_seconds": seconds, "progress_seconds": seconds})
            found["rates"][name].append(result.version / (time.monotonic() - start))
            found["cpu"][name].append((cpu_seconds() - cpu) / max(1, result.version))
    print("MEASURED " + json.dumps(found), flush=True)
    return found


def warmed_up(dim: int, num_known: int, server_lr: float) -> SecureAFL:
    """The default, which already knows `num_known` clients, so that each step costs what it will."""
    defense, rng = SecureAFL(dim, server_lr=server_lr), np.random.default_rng(0)
    params = np.zeros(dim, np.float32)
    for version in range(5 * num_known):
        model = Model(version, params)
        noise = rng.standard_normal(dim, np.float32)
        client = ClientId(FIRST_STRANGER + version % num_known)
        verdict = defense.step(Update(client, model, params - 1 + np.float32(0.1) * noise), model)
        if verdict.direction is not None:
            params = params - np.float32(server_lr) * verdict.direction
    return defense


def cpu_seconds() -> float:
    """CPU time so far of every process that carries this one's marker, and of the children they waited for (Linux)."""
    marker = next((f"{name}={value}" for name, value in os.environ.items() if f"{name}=" in MARKERS), "")
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        except OSError:  # gone meanwhile, or not ours
            continue
    return total / os.sysconf("SC_CLK_TCK")
