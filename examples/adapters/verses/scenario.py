"""One run of the federation among several: which defense, attacked or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


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

    def train_config(self, run_config: Mapping[str, Any]) -> dict[str, float]:
        """What the clients are told. A server would not, of course: here it stages the attack."""
        return {"malicious-share": float(run_config["malicious-share"]) if self.attacked else 0.0}


def is_malicious(partition_id: int, num_partitions: int, malicious_share: float) -> bool:
    """Whether this virtual client attacks: malicious ones lie evenly among the others, so books have both."""
    num_malicious = round(malicious_share * num_partitions)
    return (partition_id + 1) * num_malicious // num_partitions > partition_id * num_malicious // num_partitions
