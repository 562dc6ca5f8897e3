"""One run of the federation among several: which defense, attacked or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from secureafl.engines.flower import FlowerSettings, read_run_config


@dataclass(frozen=True)
class Scenario:
    """A defense, and whether a share of the virtual clients attacks it."""

    defense: str
    attacked: bool

    @classmethod
    def read_all(cls, text: str) -> list[Self]:
        """Scenarios from a list such as "asyncsgd attacked, secureafl"."""
        scenarios = []
        for entry in text.split(","):
            match entry.split():
                case [defense]:
                    scenarios.append(cls(defense, attacked=False))
                case [defense, "attacked"]:
                    scenarios.append(cls(defense, attacked=True))
                case _:
                    raise ValueError(f'scenario "{entry}": write the name of a defense, then "attacked" or nothing')
        return scenarios

    def __str__(self) -> str:
        """The scenario as the run config writes it."""
        return f"{self.defense} attacked" if self.attacked else self.defense

    def settings(self, run_config: Mapping[str, Any]) -> FlowerSettings:
        """The run config's settings with this defense; its records go to a folder of their own."""
        settings = read_run_config(run_config, defense=self.defense)
        if settings.run_dir is None:
            return settings
        if not isinstance(settings.run_dir, Path):
            raise ValueError(f"scenarios are kept in folders: set run-dir to one, not to {settings.run_dir}")
        return read_run_config(run_config, defense=self.defense, run_dir=settings.run_dir / str(self).replace(" ", "-"))

    def train_config(self, run_config: Mapping[str, Any]) -> dict[str, str | float]:
        """What the clients are told. A server would not, of course: here it stages the attack."""
        share = float(run_config["poisoned-share"]) if self.attacked else 0.0
        return {"poisoned-share": share, "poison": str(run_config["poison"])}
