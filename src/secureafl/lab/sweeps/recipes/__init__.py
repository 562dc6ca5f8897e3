"""Every table and figure of the paper by name, and ours beside them, as complete lists of cells.

A recipe says which cells to run and how its report is laid out; nothing else knows the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from secureafl.errors import UnknownSettingError
from secureafl.lab.cells.cell import PAPER_DEFAULTS
from secureafl.lab.sweeps.recipe import Recipe
from secureafl.lab.sweeps.recipes import paper, scenarios, tuning
from secureafl.lab.sweeps.recipes.compared import CIFAR10, TEXT
from secureafl.settings import nearest

RECIPES: Mapping[str, Recipe] = {
    "tuning": Recipe("each rival's free settings, without an attack", tuning.tuning, row="settings"),
    "estimator": Recipe("how SecureAFL should estimate and filter", scenarios.estimator, row="settings"),
    "strictness": Recipe("whether tighter limits stop who knows them", scenarios.strictness, row="settings"),
    "fairness": Recipe("one class held by five clients of fifty: is it learned?", scenarios.fairness, row="method"),
    "look-alikes": Recipe("attacks by pace, by new names, and by passing for others", scenarios.look_alikes),
    "local-training": Recipe(
        "clients that train for some steps, or an epoch",
        scenarios.local_training,
        row="method, local_steps",
        within="local_steps",
    ),
    "local-rates": Recipe(
        "the server's rate where clients train first",
        scenarios.local_rates,
        row="method, local_steps, server_lr",
        within="local_steps",
    ),
    **{
        f"tuning-{name}": Recipe(about, tuning.tuning_anew(name), row="settings, local_steps", within="local_steps")
        for name, about in (
            ("local", "rivals' free settings where clients train first"),
            ("cifar10", "rivals' free settings on CIFAR-10"),
            ("text", "rivals' free settings on the text"),
        )
    },
    "noise": Recipe(
        "batches of 32 to all local data: when do the paper's estimates pay?",
        scenarios.noise,
        row="batch_size",
        layout="lines",
    ),
    "regions": Recipe(
        "ten regions of twenty clients and a top: which defense below, which above",
        partial(scenarios.regions, 10, 200, 3000, server_lr=0.02, top_lr=0.2),
        row="regions",
    ),
    "many-regions": Recipe(
        "the same with a hundred regions of a hundred clients, each heard twice",
        partial(scenarios.regions, 100, 10_000, 20_000, server_lr=0.05, top_lr=0.01, full_vote_after=1),
        row="regions",
    ),
    "privacy": Recipe(
        "clients that add noise for their privacy: epsilon 8, 4 and 1, and without",
        scenarios.privacy,
        row="defense, epsilon",
        within="epsilon",
    ),
    "cifar10": Recipe(
        "CIFAR-10 with a network and a rate that learn it",
        scenarios.on_task(CIFAR10),
    ),
    "text": Recipe(
        "the next character of a text, a stretch of it for each client",
        scenarios.on_task(TEXT),
    ),
    "demo": Recipe("a first look: two defenses, three attacks, a small network", scenarios.demo),
    "matrix": Recipe("every defense against every attack, briefly", scenarios.matrix),
    **{
        f"main-{dataset}": Recipe(f"main table, {dataset}", paper.main(dataset), row="method", paper=("main", dataset))
        for dataset in PAPER_DEFAULTS
    },
    "malicious-fraction": Recipe(
        "10% to 40% malicious clients",
        scenarios.vary("malicious_fraction", (0.1, 0.2, 0.3, 0.4), attacks=("sign_flip", "scaling")),
        row="malicious_fraction",
        layout="lines",
    ),
    "delay": Recipe(
        "largest delay 5 to 50", scenarios.vary("max_delay", (5, 10, 20, 50)), row="max_delay", layout="lines"
    ),
    "clients": Recipe(
        "50 to 1,000 clients", scenarios.vary("num_clients", (50, 100, 300, 1000)), row="num_clients", layout="lines"
    ),
    "non-iid": Recipe(
        "degree of non-IID 0.1 to 0.9", scenarios.vary("non_iid", (0.1, 0.5, 0.9)), row="non_iid", layout="lines"
    ),
    "alpha": Recipe(
        "the filter's percentile", paper.percentile, row="defense_settings.percentile", paper=("percentile",)
    ),
    "variants": Recipe("variants I to IV of SecureAFL", paper.variants, row="variant", paper=("variants",)),
    "estimation-error": Recipe(
        "how far estimates are from true gradients",
        paper.estimation_error,
        row="settings",
        layout="error",
        paper=("estimation_error",),
    ),
    "running-time": Recipe(
        "seconds per round, 50 to 300 clients",
        paper.running_time,
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
