"""What an operator sets for a federation on an engine, whichever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from secureafl.errors import SettingsError
from secureafl.server import FederationSettings
from secureafl.server.report.sinks import parse_sink, split_sinks
from secureafl.wire import Wire


class EngineSettings(FederationSettings):
    """The engines' common share of the settings, beside those of every federation."""

    max_in_flight: int | None = Field(None, ge=1)
    """Clients that may hold the model at one time; the others wait their turn. None for all."""
    stall_seconds: float = Field(10.0, gt=0.0)
    """`max_in_flight`: a client whose update has not come after so long gives its place to another one; once updates
    came, after four times as long as they usually take, and a tenth of this at least. Its update still counts. Until
    the first update has come, no more than `max_in_flight` do so."""
    ttl_seconds: float = Field(3600.0, gt=0.0)
    """How long a client may take; then its ticket expires."""
    discovery_seconds: float = Field(3.0, gt=0.0)
    """How often new and returning clients are looked for."""
    retry_seconds: float = Field(1.0, gt=0.0)
    """Wait before a client that failed is tried again; doubles with each failure in a row."""
    max_retry_seconds: float = Field(300.0, gt=0.0)
    """Longest such wait."""
    max_failures: int | None = Field(None, ge=1)
    """Failures in a row after which a client is set aside until it is due for another try; None for never."""
    hold_seconds: float = Field(0.0, ge=0.0)
    """Hold each update back for a drawn time of about this length, so that simulated clients differ in speed."""
    hold_seed: int = 0
    """Seed of those draws."""
    wire: Wire = "float32"
    """How updates and models travel: with `bfloat16` both take half the bytes; with `int8` updates take a quarter, and
    models, which are bfloat16 then, half. It is offered to every client; those that cannot compress are served with
    float32. A run keeps the one it began with."""
    keys_file: Path | None = None
    """TOML file of public keys, `client = "base64"`; when given, every update must be signed."""
    names_file: Path | None = None
    """TOML file of clients' names, `"7345310127518283649" = "hospital-a"`, for tables and pages. It is kept with the
    run."""
    region_dir: Path | None = None
    """If this server serves a region of a larger federation: the folder in which it meets the region's client of the
    server above. Goes together with `upstream`."""
    report_every: int = Field(20, ge=1)
    """`region_dir`: updates of its clients after which a region reports to the server above."""
    metrics_port: int = Field(0, ge=0, le=65535)
    """Port for Prometheus to scrape, with the extra `ops`; 0 for none."""
    metrics_host: str = "127.0.0.1"
    """Address that port is opened on. Scrapes are not authenticated: open it to a network you trust, or to none."""
    sinks: Annotated[tuple[str, ...], BeforeValidator(split_sinks)] = ()
    """Where metrics are sent: any of `tensorboard:DIR`, `mlflow:URI`, `wandb:DIR`. A text with commas is a list."""
    sink_seconds: float = Field(15.0, gt=0.0)
    """Time between two such sendings."""

    def waiting_for(self) -> str:
        """Who has to be there before the first model goes out, for the line that says so."""
        return "clients"

    def facts(self) -> dict[str, object]:
        return {**super().facts(), "signing": self.keys_file is not None, "wire": self.wire}

    @model_validator(mode="after")
    def _region_is_whole(self) -> EngineSettings:
        if (self.region_dir is None) != (self.upstream is None):
            raise SettingsError("region_dir and upstream go together: set both or neither")
        if self.region_dir is None and self.report_every != type(self).model_fields["report_every"].default:
            raise SettingsError(f"report_every = {self.report_every} does nothing: set region_dir and upstream")
        return self

    @field_validator("sinks")
    @classmethod
    def _sinks_exist(cls, sinks: tuple[str, ...]) -> tuple[str, ...]:
        for sink in sinks:
            parse_sink(sink)
        return sinks
