"""Settings of a federation on Flower, and how they are read from a Flower app's run config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from secureafl.defenses import find_defense
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.flower.plain_errors import plain_errors
from secureafl.engines.sessions import Pace
from secureafl.errors import SettingsError

TABLE = "secureafl"


class FlowerSettings(EngineSettings):
    """A federation on Flower: the engine's share of the settings, beside those of every engine."""

    min_nodes: int = Field(1, ge=1)
    """Wait for so many nodes before anyone gets the model."""
    num_workers: int = Field(16, ge=1)
    """Threads that talk to the SuperLink; a transfer that stalls takes one of them."""
    poll_seconds: float = Field(0.05, gt=0.0)
    """First wait before asking for an update; later waits are a tenth of the time already waited."""
    max_poll_seconds: float = Field(5.0, gt=0.0)
    """Longest wait between two such questions."""

    def waiting_for(self) -> str:
        return (
            f"nodes: {self.min_nodes} have to be there (min-nodes). In simulation: flwr run . --federation-config "
            f'"num-supernodes={self.min_nodes}"'
        )

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
    spelled: dict[str, str] = {}
    for key, value in run_config.items():
        table, _, written = key.partition(".")
        if table != TABLE or not written:
            continue
        spelled.update((part.replace("-", "_"), part) for part in written.split("."))
        name, _, inner = written.replace("-", "_").partition(".")
        if inner:
            settings.setdefault(name, {})[inner] = value
        elif value != "":  # Flower has no null: an empty text stands for "not set"
            settings[name] = value
    with plain_errors():
        try:
            found = FlowerSettings(**{**settings, **changes})
            if (entry := _built_in(found.defense)) is not None:
                entry(**found.defense_settings)
        except SettingsError as error:
            raise type(error)(_in_own_spelling(str(error), spelled)) from None
    return found


def _built_in(defense: str) -> Any:
    """The settings of a defense; None for one that is named when it is built, by whoever brings it."""
    try:
        return find_defense(defense).settings if ":" not in defense else None
    except SettingsError:
        return None


def _in_own_spelling(message: str, spelled: Mapping[str, str]) -> str:
    """An error about settings as the app's own file writes them."""
    message = re.sub(r"^FlowerSettings has no", f"[tool.flwr.app.config.{TABLE}] has no", message)
    message = re.sub(r"^FlowerSettings: (\w)", rf"{TABLE}.\1", message)
    inner = f"[tool.flwr.app.config.{TABLE}.defense-settings]"
    message = re.sub(r"^(?!Flower)\w+Settings has no", f"{inner} has no", message)
    message = re.sub(r"^(?!Flower)\w+Settings: ", f"{TABLE}.defense-settings: ", message)
    names = {name: spelled.get(name, name.replace("_", "-")) for name in FlowerSettings.model_fields} | dict(spelled)
    return re.sub(r"\b\w*_\w*\b", lambda found: names.get(found[0], found[0]), message)
