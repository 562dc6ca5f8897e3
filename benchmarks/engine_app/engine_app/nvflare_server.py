"""Measures on NVFlare."""

from collections.abc import Mapping
from typing import Any

from nvflare.collab import collab

from engine_app.measure import initial_model, measure, moved
from secureafl.defenses import Defense
from secureafl.engines.nvflare import NVFlareSettings, run_federation
from secureafl.server import Result
from secureafl.types import NamedArrays

SERVER_LR = 0.01


class MeasuringServer:
    """A Collab server that runs several short federations in one job."""

    def __init__(self, dim: int, num_clients: int, num_known: int, phase_seconds: float, repeats: int) -> None:
        self.dim = dim
        self.num_clients = num_clients
        self.num_known = num_known
        self.phase_seconds = phase_seconds
        self.repeats = repeats

    @collab.main
    def run(self) -> None:
        def federate(defense: Defense, until: Mapping[str, float]) -> Result:
            settings = NVFlareSettings(min_clients=self.num_clients, server_lr=SERVER_LR, **until)
            return run_federation(initial_model(self.dim), settings, defense=defense)

        measure(
            federate,
            seconds=self.phase_seconds,
            dim=self.dim,
            num_known=self.num_known,
            repeats=self.repeats,
            server_lr=SERVER_LR,
        )


def train(arrays: NamedArrays, config: Mapping[str, Any]) -> NamedArrays:
    return moved(arrays)
