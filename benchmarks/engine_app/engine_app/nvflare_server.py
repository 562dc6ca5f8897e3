"""Measures on NVFlare."""

from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.collab import collab

from engine_app.measure import initial_model, measure, moved
from secureafl.engines.nvflare import NVFlareSettings, run_federation
from secureafl.types import NamedArrays


class MeasuringServer:
    """A Collab server that runs several short federations in one job."""

    def __init__(
        self, dim: int, num_clients: int, num_known: int, phase_seconds: float, repeats: int, steps: Sequence[str]
    ) -> None:
        self.dim = dim
        self.num_clients = num_clients
        self.num_known = num_known
        self.phase_seconds = phase_seconds
        self.repeats = repeats
        self.steps = steps

    @collab.main
    def run(self) -> None:
        settings = NVFlareSettings(
            min_clients=self.num_clients,
            server_lr=0.01,
            stop_after_seconds=self.phase_seconds,
            progress_seconds=self.phase_seconds,
        )
        measure(
            lambda defense: run_federation(initial_model(self.dim), settings, defense=defense),
            dim=self.dim,
            num_known=self.num_known,
            repeats=self.repeats,
            server_lr=settings.server_lr,
            steps=self.steps,
        )


def train(arrays: NamedArrays, config: Mapping[str, Any]) -> NamedArrays:
    return moved(arrays)
