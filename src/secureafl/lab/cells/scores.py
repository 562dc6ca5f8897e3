"""How a run went.

The paper's three: the test error rate (TER), the attack success rate (ASR) and the root mean squared error (RMSE).

A model that has diverged answers with NaN, and `argmax` of NaN is class 0. Counted naively, that gives TER 0.90 on ten
classes, and ASR 1.00 if 0 is the backdoor's target. So a sample with any non-finite output is wrong for the TER,
no success for the ASR, and predicted as no class; its RMSE is infinite. `diverged` tells such a run.

Beside them, what the tables of papers leave out: what the defense accepted from whom, and how good its estimates were.

Shapes: N samples, z classes, T arrivals, n clients, d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError
from secureafl.lab.arrays import Labels, Outputs

NO_CLASS = -1
"""What a sample with a non-finite output is predicted as."""

FACTOR_PERCENTILES = (1.0, 10.0, 25.0, 50.0, 75.0, 80.0, 90.0, 99.0)


def predicted_classes(logits: Outputs) -> npt.NDArray[np.int64]:
    """(N,) the class of the largest logit, or `NO_CLASS`."""
    finite = np.isfinite(logits).all(axis=1)
    return np.where(finite, np.argmax(logits, axis=1), NO_CLASS)


def error_rate(logits: Outputs, labels: Labels) -> float:
    """TER: share of (N, z) logits that name another class than the label."""
    _check(logits, labels)
    return float(np.mean(predicted_classes(logits) != labels))


def class_recalls(logits: Outputs, labels: Labels, num_classes: int) -> npt.NDArray[np.float64]:
    """(z,) of each class, the share of its samples that are recognised; NaN for a class without a sample."""
    _check(logits, labels)
    recognised = predicted_classes(logits) == labels
    counts = np.bincount(labels, minlength=num_classes)
    recalls = np.full(num_classes, np.nan)
    np.divide(np.bincount(labels, recognised, num_classes), counts, out=recalls, where=counts > 0)
    return recalls


def attack_success_rate(logits: Outputs, labels: Labels, target_label: int) -> float:
    """ASR: share of triggered images that are taken for the target.

    logits        (N, z) for test images that all carry the trigger
    labels        (N,) their true classes; images of the target class are left out, being no success of the attack
    """
    _check(logits, labels)
    others = labels != target_label
    if not others.any():
        raise SettingsError(f"target_label = {target_label}: no test image has another class, so ASR is undefined")
    return float(np.mean(predicted_classes(logits[others]) == target_label))


def root_mean_squared_error(outputs: Outputs, targets: Labels) -> float:
    """RMSE of (N,) predictions; infinite if one of them is not finite."""
    _check(outputs, targets)
    if not np.isfinite(outputs).all():
        return float("inf")
    return float(np.sqrt(np.mean((outputs.astype(np.float64) - targets) ** 2)))


def largest_class_share(logits: Outputs) -> float:
    """Share of samples predicted as the most popular class: near 1, the model has stopped looking at its input."""
    predicted = predicted_classes(logits)
    predicted = predicted[predicted != NO_CLASS]
    return float(np.bincount(predicted).max() / len(logits)) if len(predicted) else 0.0


def diverged(outputs: Outputs) -> bool:
    """Whether any output is not a finite number."""
    return not bool(np.isfinite(outputs).all())


@dataclass(frozen=True)
class Detection:
    """A defense as a detector: a rejected update is an alarm, a malicious client's update is what it should find."""

    malicious_rejected: int
    malicious_accepted: int
    honest_rejected: int
    honest_accepted: int

    @property
    def precision(self) -> float:
        """Share of alarms that were right; NaN without an alarm."""
        return _ratio(self.malicious_rejected, self.malicious_rejected + self.honest_rejected)

    @property
    def recall(self) -> float:
        """Share of malicious updates that raised one; NaN without a malicious update."""
        return _ratio(self.malicious_rejected, self.malicious_rejected + self.malicious_accepted)

    @property
    def false_alarm_rate(self) -> float:
        """Share of honest updates that raised one; NaN without an honest update."""
        return _ratio(self.honest_rejected, self.honest_rejected + self.honest_accepted)


def detection(accepted: npt.NDArray[np.bool_], malicious: npt.NDArray[np.bool_]) -> Detection:
    """Counts over (T,) arrivals: was it accepted, did it come from a malicious client."""
    if accepted.shape != malicious.shape:
        raise SettingsError(f"accepted has shape {accepted.shape}, malicious {malicious.shape}; they must agree")
    return Detection(
        malicious_rejected=int(np.sum(malicious & ~accepted)),
        malicious_accepted=int(np.sum(malicious & accepted)),
        honest_rejected=int(np.sum(~malicious & ~accepted)),
        honest_accepted=int(np.sum(~malicious & accepted)),
    )


def acceptance_by_client(
    clients: npt.NDArray[np.int64], accepted: npt.NDArray[np.bool_], num_clients: int
) -> npt.NDArray[np.float64]:
    """(n,) share of each client's updates that were accepted; NaN for a client never heard of."""
    updates = np.bincount(clients, minlength=num_clients)
    counted = np.bincount(clients, weights=accepted, minlength=num_clients)
    shares = np.full(num_clients, np.nan)
    np.divide(counted, updates, out=shares, where=updates > 0)
    return shares


def estimation_error(estimates: npt.NDArray[np.floating], gradients: npt.NDArray[np.floating]) -> float:
    """Mean over clients k of ‖estimate_k - gradient_k‖ / ‖gradient_k‖, both (n, d).

    Clients with a zero gradient are left out, as nothing is relative to zero; NaN if none is left.
    """
    if estimates.shape != gradients.shape or estimates.ndim != 2:
        raise SettingsError(f"estimates have shape {estimates.shape}, gradients {gradients.shape}; both must be (n, d)")
    true = gradients.astype(np.float64)
    lengths = np.linalg.norm(true, axis=1)
    known = lengths > 0
    if not known.any():
        return float("nan")
    return float(np.mean(np.linalg.norm(estimates[known] - true[known], axis=1) / lengths[known]))


def percentiles(values: npt.NDArray[np.floating], at: Sequence[float] = FACTOR_PERCENTILES) -> dict[float, float]:
    """Percentiles of Lipschitz factors, say. Non-finite values are left out; NaN if none is left."""
    finite = values[np.isfinite(values)]
    found = np.percentile(finite, at) if finite.size else np.full(len(at), np.nan)
    return dict(zip(at, map(float, found), strict=True))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _check(outputs: Outputs, labels: Labels) -> None:
    if len(outputs) != len(labels) or not len(labels):
        raise SettingsError(f"{len(outputs)} outputs for {len(labels)} labels; as many are needed, and at least one")
