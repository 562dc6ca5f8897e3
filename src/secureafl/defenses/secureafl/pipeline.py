"""The way of an update through the stages, in order: measured, judged, limited, voted on, combined, remembered.

This is the only place where arrays of the model's size are handed to a pass over them, and an update's length is
measured once. What an update is shortened to is measured again, because it is another vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import norm, scoped, staleness, unscoped
from secureafl.defenses.secureafl.collusion import WIDTH
from secureafl.defenses.secureafl.formats import renamed
from secureafl.defenses.secureafl.stages import Arrival, Ballot, Stages, WeighsClients
from secureafl.errors import StateError
from secureafl.history import History
from secureafl.types import Array, ClientId, Model, Reason, StateDict, Update, Vector, Verdict, refuse


class Counted(NamedTuple):
    """As much of an update as counts, and how far that is from its sender's reference; None at first contact."""

    delta: Vector
    change: kernels.Change | None


class Pipeline:
    """A defense made of stages."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self._named = stages.each()
        self._dim = stages.estimate.history.dim
        every = self._named.values()
        self._compares = any(stage.reads_agreement for stage in every)
        self._signs = next((stage.signs for stage in every if stage.signs is not None), None)
        self._num_arrivals = 0
        self._follow(np.empty(0, np.float32))

    @property
    def history(self) -> History:
        """What is remembered of each client."""
        return self.stages.estimate.history

    @property
    def server_lr(self) -> float | None:
        """The learning rate that this defense counts on; None if any will do."""
        return self.stages.estimate.server_lr if self.stages.combine is not None else None

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        arrival, change = self._measure(update, model)
        rejected, remembered = self._judge(arrival)
        longest, furthest = self._limits(arrival)
        counted = Counted(update.delta, change)
        if remembered:
            counted = self._shortened(update, arrival, change, longest, furthest)
        for votes in self.stages.votes:
            votes.hear(arrival, accepted=rejected is None, remembered=remembered)
        direction = self._combine(arrival, counted, model.params, accepted=rejected is None)
        if remembered or self.stages.remember_all:
            self.stages.estimate.learn(update, *counted, accepted=rejected is None)
        self._num_arrivals += 1
        arrival.evidence.update(self.stages.estimate.evidence())
        if direction is not None:
            arrival.evidence["direction_norm"] = norm(direction)
        reason = rejected or (Reason.ACCEPTED if arrival.known else Reason.FIRST_CONTACT)
        return Verdict(rejected is None, reason, direction, arrival.evidence)

    def excluded(self) -> dict[ClientId, str]:
        """Known clients that have no vote until further notice, and why."""
        return {client: why for votes in self.stages.votes for client, why in votes.excluded().items()}

    def absent(self) -> frozenset[ClientId]:
        """Who has no vote at the next step alone."""
        return frozenset().union(*(votes.absent(self._num_arrivals) for votes in self.stages.votes))

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would send for `params`, as far as its past tells."""
        weights = self.stages.estimate.weights_at(params, client)
        return self.history.estimate(client, weights[0], params)

    def estimates(self, params: Vector) -> Vector:
        """(n, d): what every known client would send for `params`, in the order of `history.clients`."""
        out = np.empty((len(self.history), self._dim), np.float32)
        self.history.estimates(self.stages.estimate.weights_at(params), params, out)
        return out

    def influence(self, params: Vector) -> dict[ClientId, float] | None:
        """How far the model follows each known client; None where the combiner cannot tell."""
        combiner = self.stages.combine
        if not isinstance(combiner, WeighsClients):
            return None
        clients, excluded = self.history.clients, self.excluded().keys() | self.absent()
        shares = dict.fromkeys(clients, 0.0)
        voting = [row for row, client in enumerate(clients) if client not in excluded]
        for row, share in zip(voting, combiner.influence(self.estimates(params)[voting]), strict=True):
            shares[clients[row]] = float(share)
        return shares

    def state_dict(self) -> StateDict:
        state: StateDict = {"num_arrivals": np.array(self._num_arrivals, np.int64)}
        if self._compares:
            state["direction"] = self._consensus.copy()
        for name, stage in self._named.items():
            state |= scoped(name, stage.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        state = renamed(state)
        try:
            self._num_arrivals = int(np.asarray(state["num_arrivals"], np.int64))
            if self._compares:
                self._follow(np.array(state["direction"], np.float32))
            for name, stage in self._named.items():
                stage.load_state_dict(unscoped(name, state))
        except KeyError as missing:
            raise StateError(
                f"saved state holds no {missing}: it is of another defense, or of other settings"
            ) from None

    def _measure(self, update: Update, model: Model) -> tuple[Arrival, kernels.Change | None]:
        """All numbers that any stage asks for."""
        client, known = update.client, update.client in self.history
        found = kernels.measure(
            update.delta,
            update.base.params,
            (self.history.last_delta(client), self.history.last_base(client)) if known else None,
            self._consensus,
            *(() if self._signs is None else (self._signs, WIDTH)),
        )
        length, change = math.sqrt(found.square), found.change
        arrival = Arrival(
            client=client,
            number=self._num_arrivals,
            known=known,
            norm=length,
            delta_change=change.delta_change if change else 0.0,
            param_change=change.param_change if change else 0.0,
            agreement=self._agreement(found),
            sketch=found.sketch / found.square**0.5 if self._signs is not None and length > 0.0 else None,
            evidence={"norm": length, "staleness": float(staleness(update, model))},
        )
        return arrival, change

    def _agreement(self, found: kernels.Measured) -> float | None:
        if not len(self._consensus):
            return None
        lengths = found.square * self._consensus_square
        return found.product / lengths**0.5 if lengths > 0.0 else 0.0

    def _judge(self, arrival: Arrival) -> tuple[str | None, bool]:
        """Why the update is rejected, if it is, and whether it becomes its sender's reference."""
        for judge in self.stages.judges:
            if (reason := judge.judge(arrival)) is not None:
                return reason, judge.remembers
        return None, True

    def _limits(self, arrival: Arrival) -> tuple[float, float]:
        change = self.stages.change
        return self.stages.length.limit(arrival), math.inf if change is None else change.limit(arrival)

    def _shortened(
        self, update: Update, arrival: Arrival, change: kernels.Change | None, longest: float, furthest: float
    ) -> Counted:
        """As much of the update as its length and its distance from its sender's last one allow. The evidence tells."""
        delta, client, evidence = update.delta, update.client, arrival.evidence
        if arrival.norm > longest:
            evidence["shortened_to"] = longest / arrival.norm
            delta = delta * np.float32(longest / arrival.norm)
            change = self.history.change(client, delta, update.base.params) if change is not None else None
        if change is not None and change.delta_change > furthest:
            evidence["change_shortened_to"] = share = furthest / change.delta_change
            step = np.float32(share) * change.delta_step
            change = change._replace(delta_step=step, delta_change=furthest, curvature=share * change.curvature)
            delta = self.history.last_delta(client) + step
        return Counted(delta, change)

    def _combine(self, arrival: Arrival, counted: Counted, params: Vector, *, accepted: bool) -> Vector | None:
        """Eqs. (4)-(5): combine the received update, if accepted, with the estimates of everyone else."""
        combiner, estimator = self.stages.combine, self.stages.estimate
        received = counted.delta if accepted else None
        if combiner is None:
            return received
        absent = self.absent()
        without = self.excluded().keys() | absent | {arrival.client}
        excluded = np.array([client in without for client in self.history.clients], np.bool_)
        vote = None if arrival.client in absent else received
        if vote is None and excluded.all():
            return None
        lead = None
        if self.stages.lead > 0.0 and accepted and counted.change is not None:
            lead = np.float32(self.stages.lead) * counted.change.delta_step
        weights = estimator.weights(params)
        step = combiner.combine(
            Ballot(estimator, weights, excluded, params, arrival.client, vote, lead, self._num_arrivals)
        )
        estimator.advance(step)
        if self._compares:
            self._follow(step.direction if lead is None else step.direction - lead)
        return step.direction

    def _follow(self, consensus: Vector) -> None:
        """Take the newest combination of all votes, without any lead, as what updates are compared with."""
        self._consensus = consensus
        self._consensus_square = kernels.dot(consensus, consensus)
