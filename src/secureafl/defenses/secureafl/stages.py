"""What the method is made of: an arrival, measured once, and the small stages that read its numbers.

A stage has one verb, a name that scopes its saved state, and `state_dict`/`load_state_dict`. It never sees an update
itself: what it needs to know of one is in `Arrival`. Only the estimator, which remembers updates, and the combiner,
which makes a step of them, touch arrays of the model's size; `Pipeline` calls all of them in order.

Shapes: n = known clients, d = parameters, r = rows that the history keeps of a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from secureafl import kernels
from secureafl.errors import SettingsError
from secureafl.history import Float, History
from secureafl.types import Array, ClientId, StateDict, StateView, Update, Vector

Signs = npt.NDArray[np.int8]

NO_ONE: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """One update in numbers.

    client      its sender
    number      arrivals before this one
    known       whether the sender has a reference, its last remembered update
    met         whether the sender was heard before; if not, this is first contact
    norm        |g|
    delta_change, param_change  |g - g_ref| and |w - w_ref|; 0 at first contact
    counts      whether its numbers count when it is asked what is usual
    excess      how many times as long as it may count the update is; 1 if it counts whole, or is judged as it came
    agreement   cosine between g and the consensus; None while there is none, or where no stage asks
    curvature   cosine between g - g_ref and w - w_ref, about; None where one of them is 0, or nobody measures it
    sketch      sums of g's coordinates with random signs, for a g of unit length; None for a g of length 0, or where
                no stage asks
    evidence    what the audit trail will say: stages add the numbers they decide by
    """

    client: ClientId
    number: int
    known: bool
    norm: float
    met: bool = True
    counts: bool = True
    delta_change: float = 0.0
    param_change: float = 0.0
    excess: float = 1.0
    agreement: float | None = None
    curvature: float | None = None
    sketch: npt.NDArray[np.floating] | None = None
    evidence: dict[str, float] = field(default_factory=dict)


class Stage:
    """What every stage has. One without state inherits the rest from here."""

    name: str
    """Unique among the stages of a pipeline: its state is saved under it."""

    reads_agreement: bool = False
    """Whether it asks for `Arrival.agreement`."""

    signs: Signs | None = None
    """(d,) the signs for `Arrival.sketch`, if it asks for that."""

    def state_dict(self) -> StateDict:
        """All that is needed to go on, bit for bit."""
        return {}

    def state_view(self) -> StateView:
        """The same. What is large may be read when it is written: good until the next step."""
        return {**self.state_dict()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` of an equally configured stage returned."""

    def meet(self, client: ClientId, name: str) -> None:
        """The outside world calls this client so. Told once for each client, and again after a restart."""

    def forget(self, client: ClientId) -> None:
        """Keep nothing of this client, one of too many that are new."""


class Judge(Stage):
    """Decides whether an update is accepted. Judges are asked in turn, until one rejects."""

    remembers: bool = False
    """Whether an update that it rejects still becomes its sender's reference."""

    def judge(self, arrival: Arrival) -> str | None:
        """Why the update is rejected, or None if it is not."""
        raise NotImplementedError


class Limit(Stage):
    """Decides how much of an update counts. Asked for every arrival, rejected ones too."""

    def limit(self, arrival: Arrival) -> float:
        """The longest that counts in full: what is longer is shortened to it."""
        raise NotImplementedError


class Votes(Stage):
    """Decides what each client's vote weighs, or who has none."""

    def hear(self, arrival: Arrival, *, accepted: bool, remembered: bool) -> None:
        """Take note of an arrival that was judged."""

    def excluded(self) -> Mapping[ClientId, str]:
        """Who has no vote until further notice, and why."""
        return {}

    def absent(self, number: int) -> frozenset[ClientId]:
        """Who has no vote at the step of this arrival alone. Only combiners that read everyone ask."""
        return NO_ONE

    def weight(self, client: ClientId) -> float:
        """What the client's vote weighs, from 0 to 1. Only the running mean asks, of the sender at each arrival."""
        return 0.0 if client in self.excluded() else 1.0

    def weights_changed(self) -> bool:
        """Whether the weights of others than senders changed since this was last asked."""
        return False

    def counts(self, client: ClientId) -> bool:
        """Whether the client counts when it is asked what is usual."""
        return True

    def one_too_many(self) -> ClientId | None:
        """A newcomer that should be forgotten, because there are too many."""
        return None


class Budget(Stage):
    """Decides which arrivals move the model."""

    def spend(self, arrival: Arrival) -> bool:
        """Whether this one does."""
        raise NotImplementedError


class Beginning(Stage):
    """Watches the first steps of a run, and may take them back."""

    over: bool = False
    """Whether it has nothing more to do."""

    def hear(self, arrival: Arrival) -> Sequence[ClientId]:
        """Take note of an arrival that was judged; whose last update is to be dropped."""
        raise NotImplementedError

    def follow(self, direction: Vector) -> Vector:
        """The step that the model takes in the place of this one."""
        raise NotImplementedError


class Estimator(Stage):
    """Remembers updates, and says what every idle client would send now, as weights of its rows."""

    name = "estimate"
    history: History

    follows: bool = False
    """Whether it must know how each step moves the model."""

    server_lr: float | None = None
    """The server's learning rate, if it matters."""

    def weights(self, params: Vector) -> Float:
        """(n, r) what each client's rows weigh in its estimate for `params`, the model of this step."""
        raise NotImplementedError

    def weights_at(self, params: Vector, client: ClientId | None = None) -> Float:
        """The same for any model, of one client alone if it is named: for those who look in from outside."""
        raise NotImplementedError

    def advance(self, step: kernels.Step) -> None:
        """The model moves by this step."""

    def learn(self, update: Update, delta: Vector, change: kernels.Change | None, *, accepted: bool) -> None:
        """Make `delta`, as much of the update as counts, its sender's reference."""
        raise NotImplementedError

    def evidence(self) -> Mapping[str, float]:
        """What the audit trail should hold of it at every arrival."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Ballot:
    """All that one step is made of.

    estimator  has everyone's rows
    weights    (n, r) of the rows
    excluded     (n,) whose estimates have no vote, the sender among them
    sender     who sent the update
    vote       (d,) the update as far as it counts, None if it has no vote
    lead       (d,) added to what the votes give, or None
    number     arrivals before this one: lots are drawn by it
    """

    estimator: Estimator
    weights: Float
    excluded: npt.NDArray[np.bool_]
    params: Vector
    sender: ClientId
    vote: Vector | None
    lead: Vector | None
    number: int

    @property
    def num_votes(self) -> int:
        return int((~self.excluded).sum()) + (self.vote is not None)


class Combiner(Stage):
    """Makes one step of all votes."""

    name = "combine"

    def combine(self, ballot: Ballot) -> kernels.Step:
        """The step; at least one has a vote."""
        raise NotImplementedError


@runtime_checkable
class WeighsClients(Protocol):
    """A combiner that can tell how far the model follows each client."""

    def influence(self, votes: Vector) -> Float:
        """(n,) the share of each of these votes (n, d) in the step they would give."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stages:
    """A whole method: one stage, or some, for each thing to decide.

    judges        who is accepted
    length        how long an update may count as
    change        how far from its sender's last one; None for any distance
    votes         who has no vote
    budget        which arrivals move the model; None for all of them
    beginning     what becomes of the first steps, once it is known what is usual; None to leave them as they are
    estimate      what idle clients would send; None for a combiner that keeps their last updates itself
    combine       what step the votes give; None steps along each accepted update alone
    lead          share of an accepted update's change that moves the model at once, beside its one vote
    remember_all  whether rejected updates become their senders' references too

    A stage may stand in two places. Its state belongs to one pipeline: build the stages anew for each.
    """

    judges: tuple[Judge, ...]
    length: Limit
    change: Limit | None = None
    votes: tuple[Votes, ...] = ()
    budget: Budget | None = None
    beginning: Beginning | None = None
    estimate: Estimator | None
    combine: Combiner | None
    lead: float = 0.0
    remember_all: bool = False

    def each(self) -> dict[str, Stage]:
        """Every stage once, by name."""
        places: tuple[Stage | None, ...] = (*self.judges, self.length, self.change, *self.votes, self.budget)
        places += (self.beginning, self.estimate, self.combine)
        found: dict[str, Stage] = {}
        for stage in places:
            if stage is not None and found.setdefault(stage.name, stage) is not stage:
                raise SettingsError(f"two stages are called {stage.name!r}: give each a name of its own")
        return found

    def excluded(self) -> dict[ClientId, str]:
        """Known clients that have no vote until further notice, and why."""
        return {client: why for votes in self.votes for client, why in votes.excluded().items()}

    def absent(self, number: int) -> frozenset[ClientId]:
        """Who has no vote at the step of this arrival alone."""
        return frozenset().union(*(votes.absent(number) for votes in self.votes))

    def counts(self, client: ClientId) -> bool:
        """Whether the client counts when it is asked what is usual."""
        return all(votes.counts(client) for votes in self.votes)

    def weight(self, client: ClientId) -> float:
        """What the client's vote weighs."""
        return math.prod(votes.weight(client) for votes in self.votes)
