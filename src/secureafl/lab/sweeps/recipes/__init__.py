"""Every table and figure of the paper by name, and ours beside them, as complete lists of cells.

A recipe says which cells to run and how its report is laid out; nothing else knows the paper's experiments.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

from secureafl.defenses import PAPER, PAPER_VARIANTS, SecureAFLSettings, find_defense
from secureafl.errors import UnknownSettingError
from secureafl.lab.cells.cell import PAPER_DEFAULTS, CellSettings
from secureafl.settings import nearest

MEDIAN: Mapping[str, Any] = {"aggregate": "median"}
"""The default of 0.1, which the paper's ablations are made with."""

DEFENSES = (
    "asyncsgd",
    "kardam",
    "basgd",
    "sageflow",
    "zenopp",
    "aflguard",
    "asyncdefender",
    "fedbuff",
    "asyncfilter",
    "secureafl",
)
"""In the order of the paper's tables, and two that the paper does not have."""
ATTACKS = (
    "none",
    "label_flip",
    "sign_flip",
    "gaussian",
    "scaling",
    "dba",
    "pgd",
    "neurotoxin",
    "threedfed",
    "min_max",
    "adaptive",
)
"""In the order of the paper's tables."""
STUDIED_ATTACKS = ("none", "sign_flip", "gaussian", "scaling", "min_max")
REGRESSION_ATTACKS = ("none", "sign_flip", "gaussian", "min_max", "adaptive")
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
TUNED_ANEW: Mapping[tuple[str, str, Any], Mapping[str, Any]] = {}
"""The same where a defense, a setting and its value ask for something else."""
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
LOOK_ALIKES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "flood": {"malicious_fraction": 0.02},  # one client is enough
    "whitewash": {"malicious_fraction": 0.1},  # every update is a client that the server remembers
    "mimic": {},
    "imitate": {},
    "apart": {},
}
"""Attacks on what a server thinks of a client: its pace, its name, whom it is like; and what each changes in a cell."""
NEW_ATTACKS = ("apart", "mimic", "flood", "whitewash")
"""What the paper's table does not have, and our default has to stand."""
SELECTED_ATTACKS = ("none", "sign_flip", "scaling", "pgd", "min_max", "apart")
"""Where all would take too long: some that harm the model, some that plant a backdoor, some that avoid detection."""
MINORITY_ATTACKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "sign_flip": {},
    "imitate": {"attack_settings": {"num_victims": 5}},  # as many as hold the class
}
"""Who attacks where few hold a class: no one, others, or those who pass for the few."""
CIFAR10: Mapping[str, Any] = {
    "dataset": "cifar10",
    "architecture": "cnn",
    "server_lr": 0.05,
    "rounds": 10_000,
    "evaluate_every": 500,
}
"""CIFAR-10 as two cores can learn it: the main table's network instead of ResNet-20, and five times its rate. Twice as
many arrivals add nothing."""
TEXT: Mapping[str, Any] = {"dataset": "king-james", "rounds": 5000, "evaluate_every": 250}
LOCAL_TRAINING: Sequence[Mapping[str, Any]] = (
    {"rounds": 5000},
    {"rounds": 2500, "local_steps": 8, "server_lr": 0.2},
    {"rounds": 540, "local_steps": 37, "server_lr": 0.2},  # an epoch
)
"""Clients that send a gradient, and such that train first; about as many mini-batches in all. The server's rate for
these is one over the usual staleness."""
TUNING_ANEW: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Sequence[Mapping[str, Any]]]]] = {
    "local": (
        [{**kind, "evaluate_every": kind["rounds"] // 20} for kind in LOCAL_TRAINING[1:]],
        {
            "fedbuff": [{"scale": scale, "clip_norm": length} for scale in (5.0, 10.0) for length in (0.3, 1.0)],
            "aflguard": [{"max_distance": distance} for distance in (1.5, 2.0, 3.0)],
        },
    ),
    "cifar10": (
        [{**CIFAR10, "rounds": 2500, "evaluate_every": 125}],
        {
            "fedbuff": [
                *({"scale": scale, "clip_norm": 10.0} for scale in (5.0, 10.0, 20.0)),
                {"scale": 10.0, "clip_norm": 3.0},
            ],
            "aflguard": [{"max_distance": distance} for distance in (2.0, 3.0, 5.0, 10.0)],
        },
    ),
    "text": (
        [{**TEXT, "rounds": 2500, "evaluate_every": 125}],
        {
            "fedbuff": [{"scale": scale, "clip_norm": length} for scale in (10.0, 25.0) for length in (1.0, 10.0)],
            "aflguard": [{"max_distance": distance} for distance in (2.0, 3.0, 5.0, 10.0)],
        },
    ),
}
"""Tasks on which the rivals were tuned once more, as their limits are lengths, or depend on how alike updates are; and
what was tried."""
COMPARED = ("asyncsgd", "fedbuff", "aflguard", "secureafl")
"""Where all would take too long: no defense, what most would take first, the best with trusted data, and ours."""
GATHERED_IN: Mapping[int | None, Sequence[str]] = {
    None: ("none", "sign_flip", "scaling"),
    2: ("sign_flip", "scaling"),
    4: ("sign_flip",),
}
"""Tenths of all regions that the malicious fifth of all clients is in: all; two, wholly; or half of each of four. And
the attacks that are tried so."""
ALL_LOCAL_DATA = 4096
"""A batch that is larger than any client's share of Fashion-MNIST: it uses all it has."""
TIMED = ("asyncsgd", "zenopp", "aflguard", "secureafl")

SHORTEST = 8
"""In a table that is made shorter, so many arrivals at least lie between two evaluations, unless fewer than five
evaluations were left: one takes as long as dozens of arrivals."""

Cells = list[CellSettings]


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    about   what it shows
    make    its cells for one seed
    row     what tells its rows (or, in a figure, points along the x axis) apart: a setting, dotted if nested, or
            several with commas; the first may be `method` or `settings`, which tell SecureAFL's compositions apart
    within  a setting: rows are compared with those that have the same value, as with others the task is another
    layout  `table`: rows by attack; `lines`: one panel per attack, one line per defense, x = row;
            `error` and `time`: their own small tables
    paper   where the paper's figures for it stand in `paper_results.json`
    text    the TOML file it was read from; empty for the laboratory's own
    """

    about: str
    make: Callable[[], Cells]
    row: str = "defense"
    within: str = ""
    layout: Literal["table", "lines", "error", "time"] = "table"
    paper: tuple[str, ...] = ()
    text: str = ""

    def cells(self, seeds: Sequence[int] = (0,), **changes: Any) -> Cells:
        """Its cells, for each of these seeds and with these changes."""
        made = self.make()
        return [changed(cell, {**changes, "seed": seed}) for cell in made for seed in seeds]


def changed(cell: CellSettings, changes: Mapping[str, Any]) -> CellSettings:
    """The cell with other values; when its length changes, evaluations are spread anew unless told otherwise."""
    values = cell.model_dump()
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, Mapping) else value
    if values["rounds"] != cell.rounds and "evaluate_every" not in changes:
        spread = values["evaluate_every"] * values["rounds"] // cell.rounds
        values["evaluate_every"] = max(1, spread, min(SHORTEST, values["rounds"] // 5))
    return CellSettings(**values)


def tuned(defense: str, key: str, value: Any) -> Mapping[str, Any]:
    """What was found best for a defense where this setting has this value."""
    return TUNED_ANEW.get((defense, key, value), TUNED.get(defense, {}))


def _main(dataset: str) -> Callable[[], Cells]:
    attacks = REGRESSION_ATTACKS if dataset == "udacity" else ATTACKS
    # The paper leaves out Sageflow here: a regression has no predictive entropy to judge by.
    defenses = [name for name in DEFENSES if not (dataset == "udacity" and name == "sageflow")]
    labels: Literal["fine", "coarse"] = (
        "coarse" if dataset == "cifar100" else "fine"
    )  # diverged rows of the paper read 0.95 = 1 - 1/20

    def make() -> Cells:
        rows = [(defense, TUNED.get(defense, {})) for defense in defenses]
        if dataset == "fashion-mnist":
            rows.append(("secureafl", PAPER))
        cells = [
            CellSettings(
                dataset=dataset, labels=labels, defense=defense, attack=attack, defense_settings=dict(settings)
            )
            for defense, settings in rows
            for attack in attacks
        ]
        if dataset == "fashion-mnist":
            cells += [CellSettings(attack=attack, **LOOK_ALIKES[attack]) for attack in NEW_ATTACKS]
        return cells

    return make


def _tuning() -> Cells:
    return [
        CellSettings(rounds=5000, evaluate_every=500, defense=defense, defense_settings=dict(settings))
        for defense, choices in TUNING.items()
        for settings in choices
    ]


def _estimator() -> Cells:
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


def _strictness() -> Cells:
    return [
        CellSettings(
            rounds=5000, evaluate_every=250, defense="secureafl", attack=attack, defense_settings=dict(settings)
        )
        for attack in ("adaptive", "sign_flip", "none")
        for settings in STRICTER
    ]


def _vary(setting: str, values: Sequence[Any], attacks: Sequence[str] = ("none", "sign_flip")) -> Callable[[], Cells]:
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


def _percentile() -> Cells:
    return [
        CellSettings(defense="secureafl", attack=attack, defense_settings={"percentile": percentile})
        for percentile in (0.4, 0.5, 0.6, 0.8, 0.9)
        for attack in ATTACKS
    ]


def _variants() -> Cells:
    settings = [*({**MEDIAN, **changes} for changes in PAPER_VARIANTS.values()), dict(MEDIAN)]
    return [
        CellSettings(defense="secureafl", attack=attack, defense_settings=changes)
        for changes in settings
        for attack in ATTACKS
    ]


def _estimation_error() -> Cells:
    return [
        CellSettings(
            defense="secureafl",
            rounds=2000,
            evaluate_every=25,
            num_estimated=10,
            num_test=2000,
            defense_settings={**MEDIAN, **changes, "correction": correction},
        )
        for changes in ({}, PAPER)
        for correction in ("calibrated", "bounded", "raw", "none")
    ]


def _running_time() -> Cells:
    return [
        CellSettings(defense=defense, rounds=10 * num_clients, num_clients=num_clients, num_test=1000)
        for num_clients in (50, 100, 300)
        for defense in TIMED
    ]


def _fairness() -> Cells:
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


def _look_alikes() -> Cells:
    return [
        CellSettings(rounds=5000, evaluate_every=250, defense=defense, attack=attack, **changes)
        for defense in ("asyncsgd", "secureafl")
        for attack, changes in LOOK_ALIKES.items()
    ]


def _local_training() -> Cells:
    return [
        CellSettings(
            defense=defense, attack=attack, defense_settings=dict(settings), evaluate_every=rounds // 20, **kind
        )
        for kind in LOCAL_TRAINING
        for rounds in (int(kind["rounds"]),)
        for defense, settings in (
            *((defense, tuned(defense, "local_steps", kind.get("local_steps"))) for defense in COMPARED),
            ("secureafl", PAPER),
        )
        for attack in SELECTED_ATTACKS
    ]


def _tuning_anew(name: str) -> Callable[[], Cells]:
    def make() -> Cells:
        tasks, tried = TUNING_ANEW[name]
        return [
            CellSettings(defense=defense, defense_settings=dict(settings), **task)
            for task in tasks
            for defense, choices in tried.items()
            for settings in choices
        ]

    return make


def _regions(
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


RATES_BY_EPSILON = {None: 0.1, 8.0: 0.4, 4.0: 0.2, 1.0: 0.1}
"""The best of 0.05 to 0.8 at epsilon 8, in doubles, and of 0.1 and 0.2 without noise; less with more noise."""


def _privacy() -> Cells:
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


def _compared(task: Mapping[str, Any]) -> Callable[[], Cells]:
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


def _noise() -> Cells:
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


def _demo() -> Cells:
    return [
        CellSettings(architecture="small-cnn", rounds=1000, defense=defense, attack=attack)
        for defense in ("asyncsgd", "secureafl")
        for attack in ("none", "sign_flip", "scaling")
    ]


def _matrix() -> Cells:
    return [
        CellSettings(architecture="small-cnn", rounds=150, num_test=2000, defense=defense, attack=attack)
        for defense in DEFENSES
        for attack in (*ATTACKS, "hold", "apart", "mimic", "imitate", "flood", "whitewash")
    ]


RECIPES: Mapping[str, Recipe] = {
    "tuning": Recipe("each rival's free settings, without an attack", _tuning, row="settings"),
    "estimator": Recipe("how SecureAFL should estimate and filter", _estimator, row="settings"),
    "strictness": Recipe("whether tighter limits stop who knows them", _strictness, row="settings"),
    "fairness": Recipe("one class held by five clients of fifty: is it learned?", _fairness, row="method"),
    "look-alikes": Recipe("attacks by pace, by new names, and by passing for others", _look_alikes),
    "local-training": Recipe(
        "clients that train for some steps, or an epoch",
        _local_training,
        row="method, local_steps",
        within="local_steps",
    ),
    **{
        f"tuning-{name}": Recipe(about, _tuning_anew(name), row="settings, local_steps", within="local_steps")
        for name, about in (
            ("local", "rivals' free settings where clients train first"),
            ("cifar10", "rivals' free settings on CIFAR-10"),
            ("text", "rivals' free settings on the text"),
        )
    },
    "noise": Recipe(
        "batches of 32 to all local data: when do the paper's estimates pay?", _noise, row="batch_size", layout="lines"
    ),
    "regions": Recipe(
        "ten regions of twenty clients and a top: which defense below, which above",
        partial(_regions, 10, 200, 3000, server_lr=0.02, top_lr=0.2),
        row="regions",
    ),
    "many-regions": Recipe(
        "the same with a hundred regions of a hundred clients, each heard twice",
        partial(_regions, 100, 10_000, 20_000, server_lr=0.05, top_lr=0.01, full_vote_after=1),
        row="regions",
    ),
    "privacy": Recipe(
        "clients that add noise for their privacy: epsilon 8, 4 and 1, and without",
        _privacy,
        row="defense, epsilon",
        within="epsilon",
    ),
    "cifar10": Recipe(
        "CIFAR-10 with a network and a rate that learn it",
        _compared(CIFAR10),
    ),
    "text": Recipe(
        "the next character of a text, a stretch of it for each client",
        _compared(TEXT),
    ),
    "demo": Recipe("a first look: two defenses, three attacks, a small network", _demo),
    "matrix": Recipe("every defense against every attack, briefly", _matrix),
    **{
        f"main-{dataset}": Recipe(f"main table, {dataset}", _main(dataset), row="method", paper=("main", dataset))
        for dataset in PAPER_DEFAULTS
    },
    "malicious-fraction": Recipe(
        "10% to 40% malicious clients",
        _vary("malicious_fraction", (0.1, 0.2, 0.3, 0.4), attacks=("sign_flip", "scaling")),
        row="malicious_fraction",
        layout="lines",
    ),
    "delay": Recipe("largest delay 5 to 50", _vary("max_delay", (5, 10, 20, 50)), row="max_delay", layout="lines"),
    "clients": Recipe(
        "50 to 1,000 clients", _vary("num_clients", (50, 100, 300, 1000)), row="num_clients", layout="lines"
    ),
    "non-iid": Recipe("degree of non-IID 0.1 to 0.9", _vary("non_iid", (0.1, 0.5, 0.9)), row="non_iid", layout="lines"),
    "alpha": Recipe("the filter's percentile", _percentile, row="defense_settings.percentile", paper=("percentile",)),
    "variants": Recipe("variants I to IV of SecureAFL", _variants, row="variant", paper=("variants",)),
    "estimation-error": Recipe(
        "how far estimates are from true gradients",
        _estimation_error,
        row="settings",
        layout="error",
        paper=("estimation_error",),
    ),
    "running-time": Recipe(
        "seconds per round, 50 to 300 clients",
        _running_time,
        row="num_clients",
        layout="time",
        paper=("running_time", "num_clients"),
    ),
}
"""Every recipe by name."""


def find_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise UnknownSettingError(f"there is no recipe {name!r}; {nearest(name, list(RECIPES))}")
    return RECIPES[name]


def in_order(attacks: Iterable[str]) -> list[str]:
    """Each of these attacks once, in the order of the paper's tables; those it does not have come last."""
    return sorted(dict.fromkeys(attacks), key=lambda name: ATTACKS.index(name) if name in ATTACKS else len(ATTACKS))


def row_of(recipe: Recipe, settings: Mapping[str, Any]) -> str:
    """Which row of the recipe's table a cell with these (complete) settings belongs to."""
    own, defense = settings["defense_settings"], str(settings["defense"])
    if recipe.row == "variant":
        variants = {name: _complete({**MEDIAN, **changes}) for name, changes in PAPER_VARIANTS.items()}
        return next((name for name, full in variants.items() if own.items() <= full.items()), "secureafl")
    if recipe.row == "regions":
        return regions_row(defense, settings["protocol_settings"])
    first, *others = recipe.row.split(", ")
    if first == "method":
        name = f"{defense}-paper" if reads_literally(settings) else defense
    elif first == "settings":
        name = described(defense, own)
    else:
        name = str(setting(settings, first))
    values = {key: setting(settings, key) for key in others}
    named = [f"{key.rpartition('.')[2]}={value}" for key, value in values.items() if value is not None]
    return ", ".join([name, *named])


def regions_row(below: str, own: Mapping[str, Any]) -> str:
    """Who judges clients, who judges regions, and where the malicious clients are."""
    gathered_in, num_regions = own["malicious_regions"], own["num_regions"]
    where = "spread" if gathered_in is None else f"in {gathered_in} of {num_regions} regions"
    return f"{below}, top {own['top_defense']}, {where}"


def setting(settings: Mapping[str, Any], key: str) -> Any:
    """The value of a setting, dotted if nested; None where there is no such setting."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part)
        if value is None:
            return None
    return value


def method_of(settings: Mapping[str, Any]) -> str:
    """Who judges in a cell with these (complete) settings: SecureAFL is told apart by its settings, if they differ."""
    defense = str(settings["defense"])
    return described(defense, settings["defense_settings"]) if defense == "secureafl" else defense


def reads_literally(settings: Mapping[str, Any]) -> bool:
    """Whether a cell with these (complete) settings runs SecureAFL as the paper's text has it."""
    own = settings["defense_settings"]
    return settings["defense"] == "secureafl" and all(own[key] == value for key, value in PAPER.items())


def described(defense: str, own: Mapping[str, Any]) -> str:
    """A defense by how its settings differ from its defaults; SecureAFL's from those of 0.1 or the paper, if nearer."""
    bases = {defense: find_defense(defense).settings().model_dump(mode="json")}
    if defense == "secureafl":
        bases |= {"secureafl-median": _complete(MEDIAN), "secureafl-paper": _complete(PAPER)}
    differences = {
        name: {key: value for key, value in own.items() if value != base[key] and key != "num_classes"}
        for name, base in bases.items()
    }
    name = min(differences, key=lambda name: len(differences[name]))
    return ", ".join([name, *(f"{key}={value}" for key, value in differences[name].items())])


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All of SecureAFL's settings, as a cell has them."""
    return SecureAFLSettings(**settings).model_dump(mode="json")


@cache
def paper_results() -> dict[str, Any]:
    """The figures printed in the paper."""
    text = resources.files(__package__).joinpath("paper_results.json").read_text()
    return dict(json.loads(text))


def paper_table(recipe: Recipe) -> Any:
    """The paper's figures for a recipe, or None where it prints none."""
    if not recipe.paper:
        return None
    table: Any = paper_results()
    for key in recipe.paper:
        table = table[key]
    return table
