"""The rivals' free settings: what was tried, and what was found best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.sweeps.recipe import Cells
from secureafl.lab.sweeps.recipes.compared import CIFAR10, LOCAL_TRAINING, TEXT

TUNING: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "kardam": [
        {"candidate": candidate, "dampening": dampening}
        for candidate in ("own_previous", "last_accepted")
        for dampening in ("inverse", "none")
    ],
    "basgd": [{"num_buffers": number} for number in (5, 10, 21)],
    "sageflow": [{"loss_weight": "normalised"}, {"loss_weight": "relative"}, {"staleness_exponent": 0.0}],
    "zenopp": [{"refresh_every": arrivals} for arrivals in (1, 10)] + [{"epsilon": 0.1}],
    "aflguard": [{"max_distance": distance} for distance in (1.0, 1.5, 2.0, 3.0)],
    "asyncdefender": [{}, {"reference_decay": 0.99}, {"trust_decay": 0.99}],
    "fedbuff": [
        *({"scale": scale, "clip_norm": length} for scale in (1.0, 10.0) for length in (1.0, 3.0)),
        *({"scale": scale, "clip_norm": 10.0} for scale in (10.0, 25.0)),
    ],
    "asyncfilter": [{"buffer_size": size, "scale": scale} for size in (10, 20) for scale in (1.0, float(size))],
}
"""What may be chosen freely in each rival, and was tried without an attack."""
TUNED: Mapping[str, Mapping[str, Any]] = {
    "kardam": {"dampening": "none"},
    "basgd": {"num_buffers": 5},
    "sageflow": {"staleness_exponent": 0.0},
    "zenopp": {"epsilon": 0.1},
    "aflguard": {"max_distance": 3.0},
    "asyncdefender": {"reference_decay": 0.99},
    "fedbuff": {"scale": 25.0, "clip_norm": 10.0},
    "asyncfilter": {"scale": 20.0},
}
"""What the `tuning` sweep found best, by defense."""
TUNING_ANEW: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Sequence[Mapping[str, Any]]]]] = {
    "local": (
        LOCAL_TRAINING[1:],
        {
            "fedbuff": [{"scale": scale, "clip_norm": length} for scale in (10.0, 20.0) for length in (0.3, 1.0)],
            "aflguard": [{"max_distance": distance} for distance in (1.5, 2.0, 3.0)],
        },
    ),
    "cifar10": (
        [{**CIFAR10, "rounds": 2500, "evaluate_every": 125}],
        {
            "fedbuff": [
                *({"scale": scale, "clip_norm": 10.0} for scale in (5.0, 10.0, 20.0)),
                *({"scale": scale, "clip_norm": 3.0} for scale in (10.0, 20.0)),
                {"scale": 20.0, "clip_norm": 1.0},
            ],
            "aflguard": [{"max_distance": distance} for distance in (2.0, 3.0, 5.0, 10.0)],
        },
    ),
    "text": (
        [{**TEXT, "rounds": 2500, "evaluate_every": 125}],
        {
            "fedbuff": [
                *({"scale": scale, "clip_norm": length} for scale in (10.0, 25.0) for length in (1.0, 10.0)),
                {"scale": 50.0, "clip_norm": 10.0},
            ],
            "aflguard": [{"max_distance": distance} for distance in (2.0, 3.0, 5.0, 10.0)],
        },
    ),
}
"""Tasks on which the rivals were tuned once more, as their limits are lengths, or depend on how alike updates are; and
what was tried."""
TUNED_ANEW: Mapping[tuple[str, str, Any], Mapping[str, Any]] = {
    ("fedbuff", "dataset", "cifar10"): {"scale": 10.0},
    ("aflguard", "dataset", "cifar10"): {"max_distance": 5.0},
    ("fedbuff", "dataset", "king-james"): {"scale": 50.0, "clip_norm": 10.0},
}
"""The same where a defense, a setting and its value ask for something else."""


def tuned(defense: str, key: str, value: Any) -> Mapping[str, Any]:
    """What was found best for a defense where this setting has this value."""
    return TUNED_ANEW.get((defense, key, value), TUNED.get(defense, {}))


def tuning() -> Cells:
    return [
        CellSettings(rounds=5000, evaluate_every=500, defense=defense, defense_settings=dict(settings))
        for defense, choices in TUNING.items()
        for settings in choices
    ]


def tuning_anew(name: str) -> Callable[[], Cells]:
    def make() -> Cells:
        tasks, tried = TUNING_ANEW[name]
        return [
            CellSettings(defense=defense, defense_settings=dict(settings), **task)
            for task in tasks
            for defense, choices in tried.items()
            for settings in choices
        ]

    return make
