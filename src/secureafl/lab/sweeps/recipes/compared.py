"""What is compared: methods, attacks, and the tasks that are not the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
COMPARED = ("asyncsgd", "fedbuff", "aflguard", "secureafl")
"""Where all would take too long: no defense, what most would take first, the best with trusted data, and ours."""
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
SELECTED_ATTACKS = ("none", "sign_flip", "scaling", "pgd", "min_max", "apart")
"""Where all would take too long: some that harm the model, some that plant a backdoor, some that avoid detection."""
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
CIFAR10: Mapping[str, Any] = {
    "dataset": "cifar10",
    "architecture": "cnn",
    "server_lr": 0.05,
    "rounds": 10_000,
    "evaluate_every": 500,
}
"""CIFAR-10 as two cores can learn it: the main table's network instead of ResNet-20, and five times its rate. Twice as
many arrivals add little."""
TEXT: Mapping[str, Any] = {"dataset": "king-james", "rounds": 5000, "evaluate_every": 250}
LOCAL_TRAINING: Sequence[Mapping[str, Any]] = (
    {"rounds": 20_000, "evaluate_every": 1000},
    {"rounds": 2500, "evaluate_every": 125, "local_steps": 8, "server_lr": 0.8},
    {"rounds": 540, "evaluate_every": 27, "local_steps": 37, "server_lr": 0.4},  # an epoch
)
"""Clients that send a gradient, and such that train first, on 20,000 mini-batches in all. The server's rates for these
are the best of AsyncSGD's in `local-rates`."""
