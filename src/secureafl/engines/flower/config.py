"""Settings of a federation on Flower, and how they are read from a Flower app's run config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from secureafl.server import FederationSettings

TABLE = "secureafl"


class FlowerSettings(FederationSettings):
    """A federation on Flower: the engine's share of the settings, beside those of every federation."""

    min_nodes: int = Field(1, ge=1)
    """Wait for so many nodes before anyone gets the model."""
    num_workers: int = Field(16, ge=1)
    """Threads that talk to the SuperLink; an upload that stalls takes one of them."""
    max_in_flight: int | None = Field(None, ge=1)
    """Nodes that may hold the model at one time; the others wait their turn. None for all."""
    ttl_seconds: float = Field(3600.0, gt=0.0)
    """How long a node may take; then its ticket expires."""
    poll_seconds: float = Field(0.05, gt=0.0)
    """First wait before asking for an answer; later waits are a tenth of the time already waited."""
    max_poll_seconds: float = Field(5.0, gt=0.0)
    """Longest wait between two such questions."""
    discovery_seconds: float = Field(3.0, gt=0.0)
    """How often new and returning nodes are looked for."""
    retry_seconds: float = Field(1.0, gt=0.0)
    """Wait before a node that failed is tried again; doubles with each failure in a row."""
    max_retry_seconds: float = Field(300.0, gt=0.0)
    """Longest such wait."""
    max_failures: int | None = Field(None, ge=1)
    """Failures in a row after which a node is set aside until it is due for another try; None for never."""
    hold_seconds: float = Field(0.0, ge=0.0)
    """Hold each answer back for a drawn time of about this length, so that simulated nodes differ in speed."""
    hold_seed: int = 0
    """Seed of those draws."""
    keys_file: Path | None = None
    """TOML file of public keys, `node-id = "base64"`; when given, every answer must be signed."""


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
