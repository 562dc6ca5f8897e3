"""Settings of a federation on Flower, and how they are read from a Flower app's run config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.sessions import Pace

TABLE = "secureafl"


class FlowerSettings(EngineSettings):
    """A federation on Flower: the engine's share of the settings, beside those of every engine."""

    min_nodes: int = Field(1, ge=1)
    """Wait for so many nodes before anyone gets the model."""
    num_workers: int = Field(16, ge=1)
    """Threads that talk to the SuperLink; an upload that stalls takes one of them."""
    poll_seconds: float = Field(0.05, gt=0.0)
    """First wait before asking for an update; later waits are a tenth of the time already waited."""
    max_poll_seconds: float = Field(5.0, gt=0.0)
    """Longest wait between two such questions."""

    def pace(self) -> Pace:
        """How the SuperLink is served."""
        return Pace(
            min_clients=self.min_nodes,
            num_workers=self.num_workers,
            poll_seconds=self.poll_seconds,
            max_poll_seconds=self.max_poll_seconds,
        )


def read_run_config(run_config: Mapping[str, Any], **changes: Any) -> FlowerSettings:
    """The settings under `[tool.flwr.app.config.secureafl]`; dashes and underscores are the same. `changes` win.

    Flower flattens tables, so `secureafl.defense-settings.percentile` is the percentile of the defense.
    """
    settings: dict[str, Any] = {}
    for key, value in run_config.items():
        table, _, name = key.partition(".")
        if table != TABLE or not name:
            continue
        name, _, inner = name.replace("-", "_").partition(".")
        if inner:
            settings.setdefault(name, {})[inner] = value
        elif value != "":  # Flower has no null: an empty text stands for "not set"
            settings[name] = value
    return FlowerSettings(**{**settings, **changes})
