"""What the run config says about the model, its training and the attack, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from verses.adapters import load_model
from verses.base import Pretraining, find_base
from verses.task import Training, Trigger


@dataclass(frozen=True)
class AppSettings:
    """The app's share of the run config."""

    model: str
    pretraining: Pretraining
    rank: int
    train_factors: str
    seed: int
    training: Training
    trigger: Trigger
    boost: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        return cls(
            model=str(config["model"]),
            pretraining=Pretraining.read(config),
            rank=int(config["rank"]),
            train_factors=str(config["train-factors"]),
            seed=int(config["seed"]),
            training=Training(
                steps=int(config["local-steps"]),
                batch_size=int(config["batch-size"]),
                length=int(config["length"]),
                lr=float(config["lr"]),
            ),
            trigger=Trigger(str(config["trigger"]), str(config["continuation"])),
            boost=float(config["boost"]),
        )

    def load(self) -> tuple[Any, Any]:
        """The model with its adapters, and its tokenizer."""
        return load_model(find_base(self.model, self.pretraining), self.rank, self.train_factors, self.seed)
