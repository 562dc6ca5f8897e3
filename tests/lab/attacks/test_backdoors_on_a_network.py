"""Every backdoor, taught to a real network by an undefended server, works; without an attacker none does.

Images of class k are noise with a bright square in the k-th place. Honest and malicious clients take turns.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from secureafl import ClientId, Model, SecureAFL, Vector
from secureafl.lab.attacks import Attack, build_attack
from secureafl.lab.attacks.attack import Batch, View
from secureafl.lab.data import Trigger
from secureafl.lab.simulation.task import Task

NUM_CLASSES, TARGET, SERVER_LR, NUM_ROUNDS = 4, 0, 0.1, 160
HONEST, LIARS = [ClientId(k) for k in range(4)], [ClientId(k) for k in range(4, 8)]

SETTINGS: dict[str, dict[str, Any]] = {
    "scaling": {"scale": 1.0},
    "dba": {"scale": 1.0, "num_steps": 8},  # a quarter of the trigger, in a corner, is hard to see
    "pgd": {"num_steps": 3},
    "neurotoxin": {"num_steps": 3},
    "threedfed": {"num_rows": 3},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def task() -> Task:
    return Task("small-cnn", NUM_CLASSES, (1, 14, 14))


def images(rng: np.random.Generator, size: int = 16) -> Batch:
    y = rng.integers(0, NUM_CLASSES, size)
    x = rng.integers(0, 40, (size, 1, 14, 14), np.uint8)
    for image, label in zip(x, y, strict=True):
        row, column = 1 + 5 * (label // 2), 1 + 4 * (label % 2)
        image[0, row : row + 3, column : column + 3] = 250
    return Batch(x, y)


def federate(attack: Attack | None) -> tuple[float, float]:
    """(share of clean test images recognised, share of marked ones taken for the target)"""
    params, updates = task().initial(0), dict[ClientId, Vector]()
    trigger, shadow = Trigger.draw(1, np.random.default_rng(5)), SecureAFL(task().dim)
    for version in range(NUM_ROUNDS):
        rng, model = np.random.default_rng([0, version]), Model(version, params)
        client = (HONEST if version % 2 == 0 else LIARS)[version // 2 % 4]
        batch = images(rng)
        honest_gradient = partial(task().gradient, params, batch.x, batch.y)
        if attack is not None and client in LIARS:
            sent = attack.update(
                View(
                    round=version,
                    client=client,
                    base=model,
                    model=model,
                    server_lr=SERVER_LR,
                    num_clients=8,
                    rng=rng,
                    batch=batch,
                    task=task(),
                    updates=updates,
                    malicious=frozenset(LIARS),
                    shadow=shadow,
                    trigger=trigger,
                    target_label=TARGET,
                    honest_gradient=honest_gradient,
                    draw_batch=partial(images, rng),
                )
            )
        else:
            sent = honest_gradient()
        updates[client] = sent
        params = params - np.float32(SERVER_LR) * sent
        if attack is not None:
            attack.observe(Model(version + 1, params))
    test = images(np.random.default_rng(1), 200)
    clean = task().predict(params, test.x).argmax(axis=1) == test.y
    others = test.x[test.y != TARGET]
    fooled = task().predict(params, trigger.apply(others)).argmax(axis=1) == TARGET
    return float(clean.mean()), float(fooled.mean())


def test_without_an_attacker_the_trigger_means_nothing() -> None:
    recognised, fooled = federate(None)
    assert recognised > 0.95
    assert fooled < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SETTINGS))
def test_backdoor_is_learned_beside_the_task(name: str) -> None:
    recognised, fooled = federate(build_attack(name, SETTINGS[name]))
    assert recognised > 0.8
    assert fooled > 0.8
