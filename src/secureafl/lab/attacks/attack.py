"""What every attack is, and what it is shown: everything.

The attacker is the strongest the literature knows: it sees every client's last update, the server's models and the
defense's state. Its own randomness comes from `View.rng` alone, so that runs stay paired and repeatable.

Shapes: d = model parameters, B = images in a mini-batch, C, H, W = channels, height, width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from secureafl.defenses import SecureAFL
from secureafl.errors import SettingsError
from secureafl.lab.arrays import Images, Labels
from secureafl.layout import Layout
from secureafl.names_of_0_1 import Formerly
from secureafl.types import Array, ClientId, Model, StateDict, Vector, Verdict

Float: TypeAlias = npt.NDArray[np.float64]
"""An array of wide floats, for the maths between two updates."""


class Batch(NamedTuple):
    """One mini-batch."""

    x: Images
    y: Labels


class TaskView(Protocol):
    """As much of a learning task as an attack needs."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes; None for a regression."""

    @property
    def layout(self) -> Layout:
        """Which parameters lie where in the flat vector."""

    def gradient(self, params: Vector, x: Images, y: Labels) -> Vector:
        """The gradient of the mean loss."""


class TriggerView(Protocol):
    """The mark that wakes a backdoor."""

    def apply(self, x: Images) -> npt.NDArray[np.float32]:
        """A marked copy, float32 between 0 and 1."""

    def quadrant(self, j: int) -> TriggerView:
        """One of the four parts of this mark."""


may_diverge = np.errstate(over="ignore", invalid="ignore")
"""Decorates what computes an update: a diverged run goes on without warnings; the server refuses what it gets."""


@dataclass(frozen=True, eq=False)
class View:
    """What a malicious client knows when its turn to send comes."""

    round: int
    """Arrivals so far."""
    client: ClientId
    """Who sends."""
    base: Model
    """The model it was given, perhaps a stale one."""
    model: Model
    """The server's current model."""
    server_lr: float
    """The server moves the model by minus this times what it accepts."""
    num_clients: int
    """All clients of the federation, also those not yet heard of."""
    rng: np.random.Generator
    """This attack's own stream for this client: the only randomness it may use."""
    batch: Batch
    """This arrival's mini-batch."""
    task: TaskView
    """Loss and gradients."""
    updates: Mapping[ClientId, Vector]
    """The last update of every client heard of, malicious ones included."""
    uploads = Formerly("updates")
    malicious: frozenset[ClientId]
    """Who else is in it, under all their names; `client` is one of them."""
    shadow: SecureAFL
    """SecureAFL itself, or a copy fed with all updates when another defense runs. Read only."""
    trigger: TriggerView
    """The backdoor's mark."""
    target_label: int
    """What a marked image shall be taken for."""
    honest_gradient: Callable[[], Vector]
    """Computes `gradient`."""
    draw_batch: Callable[[], Batch]
    """Further mini-batches of this client, for those who take several local steps."""
    benign_gradients: Callable[[], Mapping[ClientId, Vector]] | None = None
    """Fresh gradients of every honest client at `base`, where the simulator is willing to pay for them."""

    @cached_property
    def gradient(self) -> Vector:
        """The honest gradient on `batch` at `base`; computed when it is first asked for."""
        return self.honest_gradient()


@runtime_checkable
class Attack(Protocol):
    """What a malicious client sends instead of its gradient. One object serves all malicious clients of a run."""

    def update(self, view: View) -> Vector:
        """(d,) float32, in the place of a gradient."""

    def observe(self, model: Model) -> None:
        """See the model that an arrival led to; called for every new version, if the attack is to learn from it."""

    def state_dict(self) -> StateDict:
        """All that is needed to go on, bit for bit."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` of an equally configured object returned."""


@runtime_checkable
class ChoosesPace(Protocol):
    """An attack whose clients answer sooner than others, and so more often."""

    @property
    def job_duration(self) -> float:
        """How long a malicious client takes for an answer, in units of the usual client's time: above 0, up to 1."""


@runtime_checkable
class ChangesNames(Protocol):
    """An attack whose clients come back under new names."""

    def leaves_name(self, verdict: Verdict) -> bool:
        """Whether a malicious client that was told this is a new one when it comes back."""


@runtime_checkable
class Watches(Protocol):
    """An attack that learns from all that honest clients send, and not only from their last updates."""

    def watch(self, client: ClientId, update: Vector) -> None:
        """See what an honest client sent; called for each such arrival. The vector belongs to others: copy it."""


class Stateless:
    """The half of `Attack` that an attack without memory has."""

    def observe(self, model: Model) -> None:
        """Learn nothing."""

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to take over."""


def rank(view: View) -> int:
    """The sender's place among the malicious clients, by number."""
    return sorted(view.malicious).index(view.client)


def benign_updates(view: View) -> Vector:
    """(n, d): each honest client's last update, in the order of their numbers; any with NaN or inf is left out."""
    rows = [row for client, row in sorted(view.updates.items()) if client not in view.malicious]
    finite = [row for row in rows if np.isfinite(row).all()]
    return np.stack(finite) if finite else np.empty((0, len(view.base.params)), np.float32)


def benign_norm(view: View) -> float:
    """Median length of the honest clients' last updates; of the sender's own gradient while there is none."""
    rows = benign_updates(view)
    if len(rows) == 0:
        rows = view.gradient[None]
    return float(np.median([length(row) for row in rows]))


def length(vector: npt.NDArray[np.floating[Any]]) -> float:
    """Euclidean length, accumulated in float64."""
    wide = vector.astype(np.float64)
    return float(np.sqrt(wide @ wide))


def require_classes(task: TaskView, attack: str) -> int:
    """The number of classes of a classification; an error for a regression."""
    if task.num_classes is None:
        raise SettingsError(f"attack {attack!r} needs labels; this task is a regression")
    return task.num_classes
