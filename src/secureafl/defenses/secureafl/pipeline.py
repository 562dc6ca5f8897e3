"""The way of an update through the stages, in order: measured, judged, limited, voted on, combined, remembered.

`passes` handles the arrays. An update's length is measured once; what it is shortened to is another vector, measured
when it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import ClientMemory, scoped, staleness, unscoped
from secureafl.defenses.secureafl.combine import RunningMean
from secureafl.defenses.secureafl.formats import renamed
from secureafl.defenses.secureafl.passes import OverEveryone, OverSender, Passes
from secureafl.defenses.secureafl.stages import Arrival, Beginning, Stage, Stages
from secureafl.errors import SettingsError, StateError
from secureafl.history import History, LastUpdates
from secureafl.types import Array, ClientId, Model, Reason, StateDict, StateView, Update, Vector, Verdict, refuse


class Pipeline:
    """A defense made of stages."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self._named = stages.each()
        self._that_meet = [stage for stage in self._named.values() if type(stage).meet is not Stage.meet]
        self.passes: Passes[Any, Any]
        if isinstance(stages.combine, RunningMean):
            self.passes = OverSender(stages, stages.combine)
        elif stages.beginning is not None:
            raise SettingsError("only a running mean can take its first steps back: leave `beginning` out")
        elif stages.estimate is not None:
            self.passes = OverEveryone(stages, stages.estimate)
        else:
            raise SettingsError("only a running mean does without an estimator: give `estimate` one")
        self._num_arrivals = 0

    @property
    def history(self) -> History | LastUpdates:
        """What is remembered of each client."""
        return self.passes.history

    @property
    def server_lr(self) -> float | None:
        """The learning rate that this defense counts on; None if any will do."""
        estimator = self.stages.estimate
        return None if estimator is None or self.stages.combine is None else estimator.server_lr

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self.history.dim):
            return refuse(fault)
        arrival, measured = self.passes.measure(update, self._num_arrivals)
        arrival.evidence.update(norm=arrival.norm, staleness=float(staleness(update, model)))
        longest = self.stages.length.limit(arrival)
        arrival = self.passes.limited(arrival, measured, longest)
        rejected, remembered = self._judge(arrival)
        furthest = math.inf if self.stages.change is None else self.stages.change.limit(arrival)
        if not remembered:
            longest = furthest = math.inf  # it is not kept, so it is not shortened
        kept = self.passes.shorten(update, arrival, measured, longest, furthest)
        for votes in self.stages.votes:
            votes.hear(arrival, accepted=rejected is None, remembered=remembered)
        accepted, moves = rejected is None, self._spend(arrival)
        beginning = self.stages.beginning
        if beginning is not None and not beginning.over:
            self._unseat(beginning.hear(arrival))
        step = self.passes.step(
            update, arrival, kept, model.params, accepted=accepted, remembered=remembered, moves=moves
        )
        self._forget_one_too_many()
        self._num_arrivals += 1
        if self.stages.estimate is not None:
            arrival.evidence.update(self.stages.estimate.evidence())
        direction = None
        if step is not None and moves:
            direction, arrival.evidence["direction_norm"] = step
            if beginning is not None and not beginning.over:
                direction = self._follow(beginning, direction, arrival)
        return Verdict(accepted, self._reason(arrival, rejected, moves), direction, arrival.evidence)

    def meet(self, client: ClientId, name: str) -> None:
        """The outside world calls this client so."""
        for stage in self._that_meet:
            stage.meet(client, name)

    def excluded(self) -> dict[ClientId, str]:
        """Known clients that have no vote until further notice, and why."""
        return self.stages.excluded()

    def absent(self) -> frozenset[ClientId]:
        """Who has no vote at the next step alone."""
        return self.stages.absent(self._num_arrivals)

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would send for `params`, as far as its past tells."""
        return self.passes.estimate(client, params)

    def estimates(self, params: Vector) -> Vector:
        """(n, d): what every known client would send for `params`, in the order of `history.clients`."""
        return self.passes.estimates(params)

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, |w - w_ref|."""
        return self.passes.distances(client, delta, base)

    def influence(self, params: Vector) -> dict[ClientId, float] | None:
        """How far the model follows each known client; None where the combiner cannot tell."""
        return self.passes.influence(params, self._num_arrivals)

    def client_memory(self) -> ClientMemory:
        """What is kept of clients, in bytes."""
        return self.passes.client_memory()

    def state_dict(self) -> StateDict:
        state: StateDict = {"num_arrivals": np.array(self._num_arrivals, np.int64), **self.passes.state_dict()}
        for name, stage in self._named.items():
            state |= scoped(name, stage.state_dict())
        return state

    def state_view(self) -> StateView:
        """The same, with rows of clients that are read when they are written: good until the next step."""
        state: StateView = {"num_arrivals": np.array(self._num_arrivals, np.int64), **self.passes.state_dict()}
        for name, stage in self._named.items():
            state |= scoped(name, stage.state_view())
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        state = renamed(state)
        try:
            self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
            self.passes.load_state_dict(state)
            for name, stage in self._named.items():
                stage.load_state_dict(unscoped(name, state))
        except KeyError as missing:
            raise StateError(
                f"saved state holds no {missing}: it is of another defense, or of other settings"
            ) from None
        except (TypeError, ValueError) as error:
            raise StateError(f"saved state is of another shape, as another version may leave it ({error})") from None

    def _judge(self, arrival: Arrival) -> tuple[str | None, bool]:
        """Why the update is rejected, if it is, and whether it becomes its sender's reference."""
        for judge in self.stages.judges:
            if (reason := judge.judge(arrival)) is not None:
                return reason, judge.remembers
        return None, True

    def _spend(self, arrival: Arrival) -> bool:
        """Whether this arrival moves the model."""
        return self.stages.budget is None or self.stages.budget.spend(arrival)

    def _reason(self, arrival: Arrival, rejected: str | None, moves: bool) -> str:
        if rejected is not None:
            return rejected
        if not moves:
            return Reason.OVER_BUDGET
        return Reason.ACCEPTED if arrival.met else Reason.FIRST_CONTACT

    def _forget_one_too_many(self) -> None:
        for votes in self.stages.votes:
            if (client := votes.one_too_many()) is not None:
                for stage in self._named.values():
                    stage.forget(client)

    def _unseat(self, clients: Sequence[ClientId]) -> None:
        """Drop what these sent last, and their votes."""
        for client in clients:
            assert isinstance(self.stages.combine, RunningMean)
            self.stages.combine.unseat(client)

    def _follow(self, beginning: Beginning, direction: Vector, arrival: Arrival) -> Vector:
        """The step that the model takes while the run begins."""
        taken = beginning.follow(direction)
        if taken is not direction:
            back = taken - direction
            arrival.evidence["taken_back"] = math.sqrt(kernels.dot(back, back))
            arrival.evidence["direction_norm"] = math.sqrt(kernels.dot(taken, taken))
        return taken
