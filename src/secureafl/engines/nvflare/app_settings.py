"""Settings of a federation on NVFlare."""

from __future__ import annotations

from pydantic import Field

from secureafl.engines.engine_settings import EngineSettings


class NVFlareSettings(EngineSettings):
    """A federation on NVFlare: the engine's share of the settings, beside those of every engine."""

    min_clients: int = Field(1, ge=1)
    """Wait for so many of the job's clients before anyone gets the model."""
    ping_seconds: float = Field(5.0, gt=0.0)
    """How long a client that did not answer may take to say that it is there."""

    def waiting_for(self) -> str:
        return f"clients: {self.min_clients} have to be there (min_clients)"
