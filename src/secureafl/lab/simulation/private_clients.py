"""Clients whose gradients are differentially private, through Opacus, as those of `secureafl.privacy` are.

    sent = (sum over a batch of each sample's gradient, cut to length C  +  noise, normal with deviation sigma C) / B

Samples come into a batch each by its own lot, B of them on average. Everyone's sigma is the one with which the client
of the fewest samples gives away no more than epsilon, if it sends as often as any is likely to. What was given away in
the end is counted from the updates that were sent.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch.optim import SGD

from secureafl.errors import SettingsError
from secureafl.lab.arrays import Images, Indices, Labels
from secureafl.lab.simulation.task import Task
from secureafl.privacy import epsilon_of, noise_for
from secureafl.types import ClientId, Vector

DELTA = 1e-5
"""Chance that the promise of epsilon does not hold: below one in the number of a client's samples."""

DEVIATIONS = 3.0
"""Standard deviations by which a client may send more often than the mean."""


class PrivateClients:
    """The honest clients of a cell, if they add noise to what they send."""

    def __init__(
        self,
        task: Task,
        shards: Sequence[Indices],
        *,
        epsilon: float,
        sample_norm: float,
        batch_size: int,
        rounds: int,
    ) -> None:
        self._shards = shards
        self._rates = [min(1.0, batch_size / len(shard)) for shard in shards]
        share = 1.0 / len(shards)
        most = rounds * share + DEVIATIONS * math.sqrt(rounds * share * (1.0 - share))
        self.noise_multiplier = noise_for(epsilon, DELTA, max(self._rates), math.ceil(most))
        self._task = _PrivateTask(task, self.noise_multiplier, sample_norm, batch_size)

    def draw(self, client: ClientId, rng: np.random.Generator) -> Indices:
        """Each of the client's samples by its own lot."""
        shard = self._shards[client]
        return np.sort(shard[rng.random(len(shard)) < self._rates[client]])

    def gradient(self, params: Vector, x: Images, y: Labels, rng: np.random.Generator) -> Vector:
        """(d,) what a client sends that drew these; all noise follows from `rng`."""
        return self._task.private_gradient(params, x, y, int(rng.integers(2**63)))

    def given_away(self, senders: Sequence[int]) -> float:
        """The largest epsilon of any of those who sent, each as often as it is named."""
        counts = Counter(senders)
        return max(
            (epsilon_of([(self.noise_multiplier, self._rates[client], n)], DELTA) for client, n in counts.items()),
            default=0.0,
        )


class _PrivateTask(Task):
    """The same task on a network of its own, since Opacus puts hooks into it."""

    _memory_format = torch.contiguous_format  # with channels_last, Opacus's gradients of convolutions are wrong

    def __init__(self, task: Task, noise_multiplier: float, sample_norm: float, batch_size: int) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.validators import ModuleValidator

        super().__init__(task.architecture, task.num_classes, task.image_shape, device=str(task.device))
        if errors := ModuleValidator.validate(self._net.train(), strict=False):
            raise SettingsError(f"architecture = {task.architecture!r} cannot be trained privately: {errors[0]}")
        self._noise = torch.Generator(device=self.device)
        self._optimizer = DPOptimizer(
            SGD(GradSampleModule(self._net).parameters(), lr=1.0),
            noise_multiplier=noise_multiplier,
            max_grad_norm=sample_norm,
            expected_batch_size=batch_size,
            generator=self._noise,
        )

    def private_gradient(self, params: Vector, x: Images, y: Labels, seed: int) -> Vector:
        self._noise.manual_seed(seed)
        self._set(params)
        self._optimizer.zero_grad()
        loss = self._loss(self._forward(x), self._labels(y))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # Opacus's, on a network's first layer
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.pre_step()
        gradients = [p.grad.reshape(-1) for p in self._net.parameters() if p.grad is not None]
        return np.asarray(torch.cat(gradients).cpu().numpy(), np.float32)
