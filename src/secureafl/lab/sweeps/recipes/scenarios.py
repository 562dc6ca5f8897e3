"""What the paper does not have: other attackers, other clients, other tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secureafl.defenses import PAPER
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.sweeps.recipe import Cells
from secureafl.lab.sweeps.recipes.compared import (
    ATTACKS,
    COMPARED,
    DEFENSES,
    LOCAL_TRAINING,
    LOOK_ALIKES,
    MEDIAN,
    SELECTED_ATTACKS,
)
from secureafl.lab.sweeps.recipes.tuning import tuned

STUDIED_ATTACKS = ("none", "sign_flip", "gaussian", "scaling", "min_max")
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "lead": {**MEDIAN, "lead": 0.0},
    "bucket": {**MEDIAN, "bucket": 1},
    "opposition": {**MEDIAN, "opposition": None},
    "alike": {**MEDIAN, "alike": None},
    "exclude_after": {**MEDIAN, "exclude_after": None},
    "max_change": {**MEDIAN, "max_change": None},
    "filter": {**MEDIAN, **{key: PAPER[key] for key in ("percentile", "tolerance", "window", "gap_damping")}},
}
"""Our additions to the paper, each taken back alone."""
STRICTER: Sequence[Mapping[str, Any]] = (
    MEDIAN,
    {**MEDIAN, "opposition": 2.0},
    {**MEDIAN, "tolerance": 2.0},
    {**MEDIAN, "bucket": 1},
)
"""Our defaults, and each limit that an attacker who knows them can exhaust, drawn tighter."""
MINORITY_ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "sign_flip": {},
    "imitate": {"attack_settings": {"num_victims": 5}},  # as many as hold the class
}
"""Who attacks where few hold a class: no one, others, or those who pass for the few."""
GATHERED_IN: Mapping[int | None, Sequence[str]] = {
    None: ("none", "sign_flip", "scaling"),
    2: ("sign_flip", "scaling"),
    4: ("sign_flip",),
}
"""Tenths of all regions that the malicious fifth of all clients is in: all; two, wholly; or half of each of four. And
the attacks that are tried so."""
ALL_LOCAL_DATA = 4096
"""A batch that is larger than any client's share of Fashion-MNIST: it uses all it has."""
RATES_BY_EPSILON = {None: 0.1, 8.0: 0.4, 4.0: 0.2, 1.0: 0.1}
"""The best of 0.05 to 0.8 at epsilon 8, in doubles, and of 0.1 and 0.2 without noise; less with more noise."""


def estimator() -> Cells:
    corrections: Sequence[Mapping[str, Any]] = [
        {"aggregate": "median", "correction": name} for name in ("none", "raw", "bounded", "calibrated")
    ]
    rows = [*corrections, *WITHOUT.values(), *({**PAPER, **correction} for correction in corrections)]
    return [
        CellSettings(
            rounds=5000,
            evaluate_every=500,
            defense="secureafl",
            attack=attack,
            num_estimated=10,
            defense_settings=dict(settings),
        )
        for settings in rows
        for attack in STUDIED_ATTACKS
    ]


def strictness() -> Cells:
    return [
        CellSettings(
            rounds=5000, evaluate_every=250, defense="secureafl", attack=attack, defense_settings=dict(settings)
        )
        for attack in ("adaptive", "sign_flip", "none")
        for settings in STRICTER
    ]


def vary(setting: str, values: Sequence[Any], attacks: Sequence[str] = ("none", "sign_flip")) -> Callable[[], Cells]:
    def make() -> Cells:
        return [
            CellSettings(
                **{"rounds": 5000, "evaluate_every": 250, "defense": defense, "attack": attack, setting: value},
                defense_settings=dict(tuned(defense, setting, value)),
            )
            for value in values
            for defense in COMPARED
            for attack in attacks
        ]

    return make


def fairness() -> Cells:
    return [
        CellSettings(
            rounds=4000,
            evaluate_every=200,
            partition="minority",
            defense=defense,
            attack=attack,
            defense_settings=dict(settings),
            **changes,
        )
        for defense, settings in (("asyncsgd", {}), ("secureafl", {}), ("secureafl", PAPER))
        for attack, changes in MINORITY_ATTACKS.items()
    ]


def look_alikes() -> Cells:
    return [
        CellSettings(rounds=5000, evaluate_every=250, defense=defense, attack=attack, **changes)
        for defense in ("asyncsgd", "secureafl")
        for attack, changes in LOOK_ALIKES.items()
    ]


def local_training() -> Cells:
    return [
        CellSettings(defense=defense, attack=attack, defense_settings=dict(settings), **kind)
        for kind in LOCAL_TRAINING
        for defense, settings in (
            *((defense, tuned(defense, "local_steps", kind.get("local_steps"))) for defense in COMPARED),
            ("secureafl", PAPER),
        )
        for attack in SELECTED_ATTACKS
    ]


def local_rates() -> Cells:
    """The same without an attack, at several rates of the server."""
    return [
        CellSettings(defense=defense, **{**kind, "server_lr": server_lr})
        for kind in LOCAL_TRAINING[1:]
        for defense in ("asyncsgd", "secureafl")
        for server_lr in (0.2, 0.4, 0.8)
    ]


def on_task(task: Mapping[str, Any]) -> Callable[[], Cells]:
    """Some methods under some attacks, on a task of its own."""

    def make() -> Cells:
        return [
            CellSettings(
                defense=defense,
                attack=attack,
                defense_settings=dict(tuned(defense, "dataset", task["dataset"])),
                **task,
            )
            for defense in COMPARED
            for attack in SELECTED_ATTACKS
        ]

    return make


def noise() -> Cells:
    rows = [("asyncsgd", {}), ("secureafl", {}), ("secureafl", PAPER), ("secureafl", {**PAPER, "correction": "none"})]
    return [
        CellSettings(
            rounds=1500,
            evaluate_every=75,
            defense=defense,
            attack=attack,
            batch_size=batch_size,
            defense_settings=dict(settings),
        )
        for batch_size in (32, 128, 512, ALL_LOCAL_DATA)
        for defense, settings in rows
        for attack in ("none", "gaussian")
    ]


def regions(
    num_regions: int, num_clients: int, rounds: int, *, server_lr: float, top_lr: float, **defense_settings: Any
) -> Cells:
    """Reports of all regions overlap, so the top's rate falls with their number."""
    return [
        CellSettings(
            architecture="mlp",
            num_clients=num_clients,
            rounds=rounds,
            evaluate_every=rounds // 10,
            num_test=2000,
            batch_size=16,
            server_lr=server_lr,
            defense=below,
            defense_settings=dict(defense_settings) if below == "secureafl" else {},
            attack=attack,
            attack_settings={"scale": 10.0} if attack == "sign_flip" else {},
            protocol="regions",
            protocol_settings={
                "num_regions": num_regions,
                "top_defense": above,
                "top_lr": top_lr,
                "report_every": 5,
                "malicious_regions": None if tenths is None else tenths * num_regions // 10,
            },
        )
        for below, above in itertools.product(("secureafl", "asyncsgd"), repeat=2)
        for tenths, attacks in GATHERED_IN.items()
        for attack in attacks
    ]


def privacy() -> Cells:
    return [
        CellSettings(
            architecture="small-cnn",
            batch_size=128,
            rounds=5000,
            evaluate_every=500,
            server_lr=server_lr,
            defense=defense,
            attack=attack,
            epsilon=epsilon,
        )
        for defense in ("asyncsgd", "secureafl")
        for epsilon, server_lr in RATES_BY_EPSILON.items()
        for attack in ("none", "sign_flip")
    ]


def demo() -> Cells:
    return [
        CellSettings(architecture="small-cnn", rounds=1000, defense=defense, attack=attack)
        for defense in ("asyncsgd", "secureafl")
        for attack in ("none", "sign_flip", "scaling")
    ]


def matrix() -> Cells:
    return [
        CellSettings(architecture="small-cnn", rounds=150, num_test=2000, defense=defense, attack=attack)
        for defense in DEFENSES
        for attack in (*ATTACKS, "hold", "apart", "mimic", "imitate", "flood", "whitewash")
    ]
