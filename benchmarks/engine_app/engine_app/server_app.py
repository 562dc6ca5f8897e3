"""Runs the same federation with SecureAFL's step and with a step that does nothing, in turn, and prints both rates."""

import json
from collections import Counter
from collections.abc import Mapping

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from secureafl import ClientId, Model, SecureAFL, Update, Verdict
from secureafl.engines.flower import read_run_config, run_federation
from secureafl.types import Array, StateDict

app = ServerApp()
FIRST_STRANGER = 10_000  # ids of clients that are known but never answer


class Nothing:
    """A server step that does nothing: what the bare engine can do."""

    def step(self, update: Update, model: Model) -> Verdict:
        return Verdict(True, "accepted")

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""


def warmed_up(dim: int, num_known: int, server_lr: float) -> SecureAFL:
    """SecureAFL that already knows `num_known` clients with full histories, so that each step costs what it will."""
    defense, rng = SecureAFL(dim, server_lr=server_lr), np.random.default_rng(0)
    params = np.zeros(dim, np.float32)
    for version in range(5 * num_known):
        model = Model(version, params)
        noise = rng.standard_normal(dim, np.float32)
        client = ClientId(FIRST_STRANGER + version % num_known)
        verdict = defense.step(Update(client, model, params - 1 + np.float32(0.1) * noise), model)
        assert verdict.direction is not None
        params = params - np.float32(server_lr) * verdict.direction
    return defense


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    dim, seconds = int(config["dim"]), float(config["phase-seconds"])
    model = {"w": np.zeros(dim, np.float32)}
    settings = read_run_config(config, stop_after_seconds=seconds, progress_seconds=seconds)
    steps = {"bare": Nothing(), "secureafl": warmed_up(dim, int(config["num-known"]), settings.server_lr)}
    rates: dict[str, list[float]] = {name: [] for name in steps}
    per_client: list[Counter[str]] = []
    for repeat in range(int(config["repeats"]) + 1):
        for name, defense in steps.items():
            result = run_federation(grid, model, settings, defense=defense)
            if repeat > 0:  # the first round starts processes and compiles kernels
                rates[name].append(result.version / result.seconds)
                per_client.append(Counter({client: n for (client, _), n in result.verdicts.items()}))
    slow = str(config["slow-node"])
    others = [sum(n for client, n in counts.items() if client != slow) / seconds for counts in per_client]
    print("MEASURED " + json.dumps({"rates": rates, "others": others}))
