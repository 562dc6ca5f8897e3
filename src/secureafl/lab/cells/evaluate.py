"""How the present model of a cell does: TER, recall by class and ASR, or RMSE.

If asked, also how far SecureAFL's estimates are off.
"""

from __future__ import annotations

import math

import numpy as np

from secureafl.defenses import SecureAFL
from secureafl.lab.attacks import find_attack
from secureafl.lab.cells import scores
from secureafl.lab.cells.build import Laboratory
from secureafl.types import ClientId, Vector


def evaluate(lab: Laboratory) -> dict[str, float]:
    """All metrics of the present model, those of the published one named `published_…`, and estimation errors."""
    machine = lab.simulation.machine
    published = {f"published_{name}": value for name, value in score(lab, machine.published.params).items()}
    return {**score(lab, machine.model.params), **published, **estimation_errors(lab)}


def score(lab: Laboratory, params: Vector) -> dict[str, float]:
    """How a model does on the test data. ASR is measured under backdoors only: it costs a second pass."""
    settings = lab.settings
    x, y = lab.dataset.test_x[: settings.num_test], lab.dataset.test_y[: settings.num_test]
    outputs = lab.task.predict(params, x)
    if lab.task.num_classes is None:
        found = {"rmse": scores.root_mean_squared_error(outputs, y)}
    else:
        found = {"ter": scores.error_rate(outputs, y), "largest_class": scores.largest_class_share(outputs)}
        recalls = scores.class_recalls(outputs, y, lab.task.num_classes)
        found |= {f"recall_{label}": float(recall) for label, recall in enumerate(recalls)}
        found["worst_recall"] = float(np.nanmin(recalls))
        if settings.attack != "none" and find_attack(settings.attack).is_backdoor:
            marked = lab.task.predict(params, x, lab.trigger.apply)
            found["asr"] = scores.attack_success_rate(marked, y, settings.target_label)
    found["diverged"] = float(scores.diverged(outputs))
    return found


def estimation_errors(lab: Laboratory) -> dict[str, float]:
    """Mean over some honest clients of |estimate - true| / |true|, for SecureAFL's estimates and for the bare last
    updates, and the same for the clients' mean; the truth is the gradient on all of a client's data at this model.
    """
    defense, params = lab.simulation.machine.defense, lab.simulation.machine.model.params
    if lab.settings.num_estimated == 0 or not isinstance(defense, SecureAFL):
        return {}
    honest = [ClientId(k) for k in range(lab.settings.num_clients) if k not in lab.malicious]
    chosen = [client for client in honest if client in defense.history][: lab.settings.num_estimated]
    if not chosen:
        return dict.fromkeys(("estimation_error", "aggregate_error", "stale_error"), math.nan)
    truth = np.stack([full_gradient(lab, client, params) for client in chosen])
    estimates = np.stack([defense.estimate(client, params) for client in chosen])
    stale = np.stack([defense.history.last_delta(client) for client in chosen])
    return {
        "estimation_error": scores.estimation_error(estimates, truth),
        "aggregate_error": scores.estimation_error(estimates.mean(axis=0)[None], truth.mean(axis=0)[None]),
        "stale_error": scores.estimation_error(stale, truth),
    }


def full_gradient(lab: Laboratory, client: ClientId, params: Vector) -> Vector:
    """The gradient of the mean loss on everything this client has, in pieces."""
    shard, size = lab.simulation.data.shards[client], 256
    total = np.zeros(lab.task.dim, np.float64)
    for start in range(0, len(shard), size):
        x, y = lab.simulation.data.batch(shard[start : start + size])
        total += lab.task.gradient(params, x, y).astype(np.float64) * len(y)
    return np.asarray(total / len(shard), np.float32)
