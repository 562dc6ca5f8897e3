"""Differential privacy at the client: noise in what it sends, through Opacus, and an account of what that gives away.

    private = PrivateTraining(noise_multiplier=1.1, max_grad_norm=1.0, delta=1e-5, ledger="privacy.json")

    network, optimizer, loader = private.prepare(model, optimizer, loader)
    for x, y in loader:                                     # the usual loop
        ...
    metrics = private.report()                              # {"secureafl-epsilon": 2.31, "secureafl-delta": 1e-05}

Each example's gradient is cut to `max_grad_norm`, and normal noise of `noise_multiplier` times that length is added to
their sum. What is sent after any number of such trainings is (epsilon, delta)-differentially private in the examples of
this client (M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016); epsilon grows with every training,
so the account must outlive the process: it is kept in a file.

The server writes down what a client reports, and shows it. It believes nothing of it, and decides nothing by it: the
noise protects this client from the server, not the other way round.

Needs Opacus: pip install "secureafl[privacy]".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from secureafl.errors import PrivacyError
from secureafl.files import save_json

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

__all__ = ["DELTA", "EPSILON", "PrivateTraining", "epsilon_of", "noise_for", "read_report"]

EPSILON, DELTA = "secureafl-epsilon", "secureafl-delta"
"""What a client's report calls them."""

Trainings: TypeAlias = Sequence[tuple[float, float, int]]
"""(noise multiplier, sample rate, steps) of all that was trained so far, as Opacus keeps account."""


class PrivateTraining:
    """A client's private trainings, one after the other.

    noise_multiplier  standard deviation of the noise, in units of `max_grad_norm`; see `noise_for`
    max_grad_norm     length that each example's gradient is cut to
    delta             chance that the promise of epsilon does not hold; well below 1 / (number of examples)
    ledger            file that keeps the account, one for each client; begun if it is not there
    max_epsilon       refuse a training that would go beyond; None for no such limit
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        delta: float,
        ledger: Path | str,
        max_epsilon: float | None = None,
    ) -> None:
        if not noise_multiplier > 0.0 or not max_grad_norm > 0.0 or not 0.0 < delta < 1.0:
            raise PrivacyError(
                f"noise_multiplier = {noise_multiplier}, max_grad_norm = {max_grad_norm}, delta = {delta}: the first "
                "two must be above 0, and delta between 0 and 1"
            )
        self._noise_multiplier = noise_multiplier
        self._max_grad_norm = max_grad_norm
        self._delta = delta
        self._max_epsilon = max_epsilon
        self._ledger = Path(ledger)
        self._engine = _opacus().PrivacyEngine(accountant="rdp")
        self._engine.accountant.history = self._read()

    @property
    def epsilon(self) -> float:
        """What all trainings so far give away of any one example."""
        return epsilon_of(self._engine.accountant.history, self._delta)

    def prepare(
        self, model: nn.Module, optimizer: Optimizer, loader: DataLoader[Any]
    ) -> tuple[nn.Module, Optimizer, DataLoader[Any]]:
        """The three to train with in place of those given: gradients are cut and noisy, and batches drawn by lot.

        The first wraps the model; send the weights of the model itself. Raises `PrivacyError` if one pass over the
        loader would go beyond `max_epsilon`.
        """
        if self._max_epsilon is not None:
            self._require_budget(len(loader), self._max_epsilon)
        network, private, drawn = self._engine.make_private(
            module=model.train(),
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=self._noise_multiplier,
            max_grad_norm=self._max_grad_norm,
        )
        return network, private, drawn

    def report(self) -> dict[str, float]:
        """What to send along with the update; it is in the ledger once this returns. Call it before you send."""
        save_json(self._ledger, {"trainings": self._engine.accountant.history})
        return {EPSILON: self.epsilon, DELTA: self._delta}

    def _require_budget(self, num_steps: int, max_epsilon: float) -> None:
        one_pass = (self._noise_multiplier, 1.0 / num_steps, num_steps)
        after = epsilon_of([*self._engine.accountant.history, one_pass], self._delta)
        if after > max_epsilon:
            raise PrivacyError(
                f"this training would give away epsilon = {after:.3g}, and max_epsilon is {max_epsilon:g}: this "
                "client has no more to give, unless its owner allows more"
            )

    def _read(self) -> list[tuple[float, float, int]]:
        try:
            rows = json.loads(self._ledger.read_bytes())["trainings"]
            return [(float(noise), float(rate), int(steps)) for noise, rate, steps in rows]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise PrivacyError(
                f"{self._ledger} is no account of private trainings: restore it, since without it nobody knows what was"
                " given away before"
            ) from error


def noise_for(epsilon: float, delta: float, sample_rate: float, num_steps: int) -> float:
    """The noise multiplier with which so many steps give away no more than epsilon.

    sample_rate  (batch size) / (number of the client's examples)
    num_steps    all steps it will ever take: (updates it sends) * (steps for each)
    """
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    return float(
        get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=num_steps, accountant="rdp"
        )
    )


def epsilon_of(trainings: Trainings, delta: float) -> float:
    """What these trainings give away of any one example; 0 if there were none."""
    if not trainings:
        return 0.0
    _opacus()
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = list(trainings)
    return float(accountant.get_epsilon(delta))


def read_report(metrics: Mapping[str, object]) -> dict[str, float]:
    """Epsilon and delta in what a client sent along; empty if they are not there, or make no sense."""
    epsilon, delta = _number(metrics.get(EPSILON)), _number(metrics.get(DELTA))
    return {} if epsilon is None or delta is None else {"epsilon": epsilon, "delta": delta}


def _number(value: object) -> float | None:
    """A number that may stand in a report, or None."""
    if isinstance(value, int) and abs(value) < 2**53:
        value = float(value)
    return value if isinstance(value, float) and math.isfinite(value) and value >= 0.0 else None


def _opacus() -> Any:
    try:
        import opacus
    except ImportError as error:
        raise PrivacyError('private training needs Opacus: pip install "secureafl[privacy]"') from error
    return opacus
