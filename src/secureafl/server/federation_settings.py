"""What an operator sets for one federation, whichever engine carries it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from secureafl.defenses import Defense, Reference, Scorer, build_defense, find_defense
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.history import RowSettings
from secureafl.server.machine import MachineSettings
from secureafl.server.record.run import StoreSettings
from secureafl.types import ClientReturns


class FederationSettings(StoreSettings, RowSettings):
    """One federation: how it judges, when it ends, what it reports."""

    defense: str = "secureafl"
    """Which defense judges arrivals; `secureafl defenses` lists them. `module:Name` for one of your own."""
    defense_settings: dict[str, Any] = Field(default_factory=dict)
    """The defense's own settings; `secureafl defenses NAME` lists them."""
    client_returns: ClientReturns = "weights"
    """What clients send back: the weights they ended at, the start minus those, or a gradient at the start."""
    server_lr: float = Field(1.0, gt=0.0)
    """Factor on each step: 1 suits weights and deltas, a learning rate suits gradients."""
    max_staleness: int | None = Field(None, ge=0)
    """Refuse updates for models more than so many versions old; None to take them all."""
    average_over: int = Field(200, ge=1)
    """Evaluate, save and return the average of about so many last versions, of the last tenth of the run while that is
    less; 1 for the newest alone. Clients always get the newest."""
    upstream: str | None = Field(None, min_length=1)
    """If this server serves a region of a larger federation: the name under which the server above is on record. What
    it sends moves the model and is not judged; no client of the region may have this name. None if there is no server
    above."""
    max_refusals: int | None = Field(5, ge=1)
    """Give a client no more work once so many of its last answers, twice that many, could not be judged: malformed,
    not finite, of another shape, badly signed. None for no limit."""
    stop_after_updates: int | None = Field(None, ge=1)
    """End after so many arrivals. Updates that are refused without being judged are none."""
    stop_after_seconds: float | None = Field(None, gt=0.0)
    """End after so much time."""
    stop_at_metric: str | None = None
    """End once this metric of the evaluation reaches `stop_at_value`."""
    stop_at_value: float | None = None
    """The value to reach; larger is better."""
    evaluate_every: int = Field(50, ge=1)
    """Evaluate the model, beside training, every so many versions; less often if an evaluation takes longer."""
    progress_seconds: float = Field(5.0, gt=0.0)
    """Time between two lines of progress."""
    resume: bool = False
    """Go on with the run that `run_dir` holds, from its last durable arrival, instead of starting a new one."""

    @model_validator(mode="after")
    def _target_is_whole(self) -> FederationSettings:
        if (self.stop_at_metric is None) != (self.stop_at_value is None):
            raise SettingsError("stop_at_metric and stop_at_value go together: set both or neither")
        return self

    def machine(self, *, count_refused: bool = False) -> MachineSettings:
        """The machine's share of these settings."""
        return MachineSettings(
            server_lr=self.server_lr,
            max_staleness=self.max_staleness,
            average_over=self.average_over,
            upstream=self.upstream,
            count_refused=count_refused,
        )

    def facts(self) -> dict[str, object]:
        """What a resumed run must share with the one it resumes: all that decides verdicts, as it is in force."""
        decisive = ("defense", "client_returns", "server_lr", "max_staleness", "average_over", "upstream")
        return {**{name: getattr(self, name) for name in decisive}, "defense_settings": self._own_settings()}

    def _own_settings(self) -> dict[str, Any]:
        try:
            entry = find_defense(self.defense)
        except UnknownSettingError:  # the operator's word for a rule that was passed as an object
            return dict(self.defense_settings)
        return entry.settings(**self.defense_settings).model_dump(mode="json")

    def make_defense(
        self, dim: int, *, seed: int = 0, reference: Reference | None = None, score: Scorer | None = None
    ) -> Defense:
        """The defense these settings describe."""
        return build_defense(
            self.defense,
            dim,
            self.defense_settings,
            server_lr=self.server_lr,
            seed=seed,
            reference=reference,
            score=score,
            rows=self.row_settings(),
        )

    def row_settings(self) -> RowSettings:
        """Where rows lie: by default in the run's own folder, if they lie in a file."""
        chosen = {name: getattr(self, name) for name in RowSettings.model_fields}
        if self.rows == "mapped" and self.rows_dir is None and isinstance(self.run_dir, Path):
            chosen["rows_dir"] = self.run_dir
        return RowSettings(**chosen)
