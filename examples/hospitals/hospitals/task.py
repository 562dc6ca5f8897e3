"""What is learned: whether a tumour is malignant, from 30 measurements of its cells. This file knows no engine.

W. N. Street, W. H. Wolberg and O. L. Mangasarian, "Nuclear feature extraction for breast tumor diagnosis", 1993: 569
patients, as scikit-learn has them. A quarter is for testing. The rest is divided among hospitals of 80 patients to 5;
larger tumours are seen more often at some of them than at others. One hospital has entered every diagnosis the wrong
way round.

The model is a logistic regression. Every hospital takes the same number of steps: with a pass over its patients each, a
large hospital would count twice, by longer updates and by its weight. Hospitals answer the later the more patients they
have, as if each had to look at all of them first.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer

Array = npt.NDArray[np.float32]

SIZES = (80, 70, 60, 50, 40, 32, 28, 22, 18, 13, 9, 5)
"""Patients of site-1, site-2, …"""
WRONG = "site-4"
NUM_TEST = 142
TOTAL = sum(SIZES)


def weights() -> dict[str, float]:
    """What each hospital's vote weighs: its patients, as a share of the largest hospital's."""
    return {site_name(number): size / max(SIZES) for number, size in enumerate(SIZES)}


def site_name(number: int) -> str:
    return f"site-{number + 1}"


def initial_model() -> dict[str, Array]:
    return {"weight": np.zeros(30, np.float32), "bias": np.zeros(1, np.float32)}


def train(arrays: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any]) -> dict[str, Array]:
    """A few steps on eight of the hospital's patients each; returns the trained weights."""
    site = str(config["site"])
    x, y = _patients(int(site.rpartition("-")[2]) - 1)
    if site == WRONG and config["wrong"]:
        y = 1.0 - y
    time.sleep(len(y) * float(config["seconds-per-patient"]))
    weight, bias = arrays["weight"].copy(), arrays["bias"].copy()
    rng = np.random.default_rng(int(config["server-round"]))
    for batch in rng.integers(len(y), size=(int(config["local-steps"]), 8)):
        errors = _risk(x[batch], weight, bias) - y[batch]
        weight -= float(config["lr"]) * (errors @ x[batch] / len(batch) + 0.01 * weight)
        bias -= float(config["lr"]) * errors.mean()
    return {"weight": weight, "bias": bias}


def accuracy(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, float]:
    """Share of the test patients that this model gets right."""
    x, y = _patients(-1)
    return {"accuracy": float(((_risk(x, arrays["weight"], arrays["bias"]) > 0.5) == (y > 0.5)).mean())}


def _risk(x: Array, weight: Array, bias: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x @ weight + bias, -30.0, 30.0))), np.float32)


@functools.cache
def _patients(number: int) -> tuple[Array, Array]:
    """Measurements and diagnoses of one hospital; of -1, those for testing."""
    table = load_breast_cancer()
    x = ((table.data - table.data.mean(0)) / table.data.std(0)).astype(np.float32)
    y = (table.target == 0).astype(np.float32)  # 1 for malignant
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    test, rest = order[:NUM_TEST], order[NUM_TEST:]
    if number < 0:
        return x[test], y[test]
    rest = rest[np.argsort(x[rest, 0] + 2.0 * rng.normal(size=len(rest)))]  # by radius, roughly
    parts = np.split(rest, np.cumsum(rng.permutation(SIZES))[:-1])
    mine = next(part for part in parts if len(part) == SIZES[number])
    return x[mine], y[mine]
