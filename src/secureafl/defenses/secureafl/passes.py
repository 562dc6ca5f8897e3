"""How the arrays of one arrival are handled: over everyone's rows, or over the sender's own.

`Pipeline` decides what happens to an update; these do it, and are the only callers of the passes over large arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from secureafl import kernels
from secureafl.defenses.base import ClientMemory
from secureafl.defenses.secureafl.combine.running_mean import RunningMean
from secureafl.defenses.secureafl.directions import Directions, draw_signs
from secureafl.defenses.secureafl.sketches import WIDTH
from secureafl.defenses.secureafl.stages import Arrival, Ballot, Estimator, Stages, WeighsClients
from secureafl.history import History, LastUpdates, Row, expected_bytes, sketch_distance
from secureafl.history.pages import MAX_PAGE_CLIENTS
from secureafl.kernels.vectors import NOTHING
from secureafl.types import Array, ClientId, StateDict, Update, Vector

Measured = TypeVar("Measured")
Kept = TypeVar("Kept")

SMALL_BYTES = 950
"""What is kept of a client beside its row and sketches, about: its name, and some numbers."""
VISITS = 4
"""Clients whose weights are brought up to date at an arrival, after they changed for many."""


class Passes(Protocol[Measured, Kept]):
    """What `Pipeline` needs of either."""

    @property
    def history(self) -> History | LastUpdates:
        """What is remembered of each client."""

    def measure(self, update: Update, number: int) -> tuple[Arrival, Measured]:
        """All numbers that any stage asks for."""

    def limited(self, arrival: Arrival, measured: Measured, longest: float) -> Arrival:
        """What judges see of an update that counts as at most so long."""

    def shorten(self, update: Update, arrival: Arrival, measured: Measured, longest: float, furthest: float) -> Kept:
        """As much of the update as its length and its distance from its sender's last one allow. The evidence tells."""

    def step(
        self,
        update: Update,
        arrival: Arrival,
        kept: Kept,
        params: Vector,
        *,
        accepted: bool,
        remembered: bool,
        moves: bool,
    ) -> tuple[Vector, float] | None:
        """Combine all votes into a step, with its length, and remember the update; None if there is no step.

        moves  whether the model will go that step: the sender's budget allows it
        """

    def agreement(self, delta: Vector) -> float | None:
        """The cosine between an update and the consensus; None while there is none, or where no stage asks."""

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, |w - w_ref|."""

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would send for `params`, as far as its past tells."""

    def estimates(self, params: Vector) -> Vector:
        """(n, d): what every known client would send for `params`, in the order of `history.clients`."""

    def influence(self, params: Vector, number: int) -> dict[ClientId, float] | None:
        """How far the model follows each known client at this arrival; None where the combiner cannot tell."""

    def client_memory(self) -> ClientMemory:
        """What is kept of clients, in bytes."""

    def state_dict(self) -> StateDict:
        """What no stage keeps."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take that over."""


class Counted(NamedTuple):
    """As much of an update as counts, and how far that is from its sender's reference; None at first contact."""

    delta: Vector
    change: kernels.Change | None


class OverEveryone:
    """For combiners that read everyone's rows: O(n d)."""

    def __init__(self, stages: Stages, estimator: Estimator) -> None:
        self._stages = stages
        self._estimator = estimator
        every = stages.each().values()
        self._compares = any(stage.reads_agreement for stage in every)
        self._signs = next((stage.signs for stage in every if stage.signs is not None), None)
        self._follow(np.empty(0, np.float32))

    @property
    def history(self) -> History:
        return self._estimator.history

    def measure(self, update: Update, number: int) -> tuple[Arrival, kernels.Change | None]:
        client, known = update.client, update.client in self.history
        found = kernels.measure(
            update.delta,
            update.base.params,
            (self.history.last_delta(client), self.history.last_base(client)) if known else None,
            self._consensus,
            *(() if self._signs is None else (self._signs, WIDTH)),
        )
        norm, change = math.sqrt(found.square), found.change
        arrival = Arrival(
            client=client,
            number=number,
            known=known,
            met=known,
            norm=norm,
            delta_change=change.delta_change if change else 0.0,
            param_change=change.param_change if change else 0.0,
            agreement=self._cosine(found),
            sketch=found.sketch / found.square**0.5 if self._signs is not None and norm > 0.0 else None,
        )
        return arrival, change

    def limited(self, arrival: Arrival, measured: kernels.Change | None, longest: float) -> Arrival:
        """What judges see: the update as it came."""
        return arrival

    def shorten(
        self, update: Update, arrival: Arrival, measured: kernels.Change | None, longest: float, furthest: float
    ) -> Counted:
        """As much of the update as its length and its distance from its sender's last one allow. The evidence tells."""
        delta, change, client, evidence = update.delta, measured, update.client, arrival.evidence
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

    def step(
        self,
        update: Update,
        arrival: Arrival,
        kept: Counted,
        params: Vector,
        *,
        accepted: bool,
        remembered: bool,
        moves: bool,
    ) -> tuple[Vector, float] | None:
        direction = self._combine(arrival, kept, params, accepted=accepted)
        if remembered or self._stages.remember_all:
            self._estimator.learn(update, *kept, accepted=accepted)
        return None if direction is None else (direction, math.sqrt(kernels.dot(direction, direction)))

    def agreement(self, delta: Vector) -> float | None:
        return self._cosine(kernels.measure(delta, delta, consensus=self._consensus))

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would send for `params`, as far as its past tells."""
        weights = self._estimator.weights_at(params, client)
        return self.history.estimate(client, weights[0], params)

    def estimates(self, params: Vector) -> Vector:
        out = np.empty((len(self.history), self.history.dim), np.float32)
        self.history.estimates(self._estimator.weights_at(params), params, out)
        return out

    def influence(self, params: Vector, number: int) -> dict[ClientId, float] | None:
        combiner = self._stages.combine
        if not isinstance(combiner, WeighsClients):
            return None
        clients, without = self.history.clients, self._stages.excluded().keys() | self._stages.absent(number)
        shares = dict.fromkeys(clients, 0.0)
        voting = [row for row, client in enumerate(clients) if client not in without]
        for row, share in zip(voting, combiner.influence(self.estimates(params)[voting]), strict=True):
            shares[clients[row]] = float(share)
        return shares

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, |w - w_ref|."""
        return self.history.distances(client, delta, base)

    def client_memory(self) -> ClientMemory:
        history = self.history
        each = expected_bytes(MAX_PAGE_CLIENTS, history.dim, history.memory, history.precision) // MAX_PAGE_CLIENTS
        return ClientMemory(each, SMALL_BYTES + 4 * WIDTH, None, 0, 4 * history.dim)

    def state_dict(self) -> StateDict:
        return {"direction": self._consensus.copy()} if self._compares else {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if self._compares:
            self._follow(np.array(state["direction"], np.float32))

    def _combine(self, arrival: Arrival, counted: Counted, params: Vector, *, accepted: bool) -> Vector | None:
        """Eqs. (4)-(5): combine the received update, if accepted, with the estimates of everyone else."""
        combiner, estimator = self._stages.combine, self._estimator
        received = counted.delta if accepted else None
        if combiner is None:
            return received
        absent = self._stages.absent(arrival.number)
        without = self._stages.excluded().keys() | absent | {arrival.client}
        excluded = np.array([client in without for client in self.history.clients], np.bool_)
        vote = None if arrival.client in absent else received
        if vote is None and excluded.all():
            return None
        lead = None
        if self._stages.lead > 0.0 and accepted and counted.change is not None:
            lead = np.float32(self._stages.lead) * counted.change.delta_step
        weights = estimator.weights(params)
        step = combiner.combine(
            Ballot(estimator, weights, excluded, params, arrival.client, vote, lead, arrival.number)
        )
        estimator.advance(step)
        if self._compares:
            self._follow(step.direction if lead is None else step.direction - lead)
        return step.direction

    def _cosine(self, found: kernels.Measured) -> float | None:
        if not len(self._consensus):
            return None
        lengths = found.square * self._consensus_square
        return found.product / lengths**0.5 if lengths > 0.0 else 0.0

    def _follow(self, consensus: Vector) -> None:
        """Take the newest combination of all votes, without any lead, as what updates are compared with."""
        self._consensus = consensus
        self._consensus_square = kernels.dot(consensus, consensus)


class Mixed(NamedTuple):
    """As much of an update as counts: of_delta g + of_row v_last.

    sketches  of it, and of the model that the update was made for
    """

    of_delta: float
    of_row: float
    sketches: tuple[Vector, Vector]


class OverSender:
    """For the running mean: passes over the sender's row alone, O(d)."""

    def __init__(self, stages: Stages, mean: RunningMean) -> None:
        self._stages = stages
        self._mean = mean
        asked = [stage.signs for stage in stages.each().values() if stage.signs is not None]
        # The distance between two models is measured by sketches in any case.
        self._signs = asked[0] if asked else draw_signs(mean.rows.dim, seed=0)

    @property
    def history(self) -> LastUpdates:
        return self._mean.rows

    def measure(self, update: Update, number: int) -> tuple[Arrival, kernels.Surveyed]:
        row = self._mean.rows.read(update.client)
        found = kernels.survey(
            update.delta,
            update.base.params,
            NOTHING if row is None else self._mean.rows.vector(update.client),
            self._mean.mean,
            self._signs,
            WIDTH,
        )
        norm = math.sqrt(found.square)
        arrival = Arrival(
            client=update.client,
            number=number,
            known=row is not None,
            met=self._mean.has_met(update.client),
            norm=norm,
            counts=self._stages.counts(update.client),
            delta_change=math.sqrt(found.change),
            param_change=0.0 if row is None else sketch_distance(found.base_sketch, row.base_sketch),
            agreement=self._cosine(found.square, found.consensus),
            sketch=found.sketch / np.float32(norm) if norm > 0.0 else None,
            curvature=None if row is None else _curvature(found, row),
        )
        return arrival, found

    def limited(self, arrival: Arrival, measured: kernels.Surveyed, longest: float) -> Arrival:
        """What judges see: as much of the update as its length allows, because its sender's last one was shortened too.
        A client whose updates are always longer than is usual does not change abruptly.
        """
        if arrival.norm <= longest or longest == 0.0:
            return arrival
        row = self._mean.rows.read(arrival.client)
        share = longest / arrival.norm
        if row is None:
            return replace(arrival, excess=1.0 / share)
        square = share * share * measured.square - 2.0 * share * measured.row + row.square
        curvature = _curvature(measured, row, share)
        return replace(arrival, delta_change=math.sqrt(max(0.0, square)), curvature=curvature, excess=1.0 / share)

    def shorten(
        self, update: Update, arrival: Arrival, measured: kernels.Surveyed, longest: float, furthest: float
    ) -> Mixed:
        """As much of the update as its length and its distance from its sender's last one allow. The evidence tells."""
        of_delta, of_row = 1.0, 0.0
        if arrival.norm > longest:
            arrival.evidence["shortened_to"] = of_delta = longest / arrival.norm
        if arrival.known and arrival.delta_change > furthest:
            arrival.evidence["change_shortened_to"] = share = furthest / arrival.delta_change
            of_delta, of_row = of_delta * share, 1.0 - share
        row = self._mean.rows.read(arrival.client)
        sketch = measured.sketch if of_delta == 1.0 else np.float32(of_delta) * measured.sketch
        if row is not None and of_row:
            sketch += np.float32(of_row) * row.sketch
        return Mixed(of_delta, of_row, (sketch, measured.base_sketch))

    def step(
        self,
        update: Update,
        arrival: Arrival,
        kept: Mixed,
        params: Vector,
        *,
        accepted: bool,
        remembered: bool,
        moves: bool,
    ) -> tuple[Vector, float] | None:
        if sum(votes.weights_changed() for votes in self._stages.votes):  # ask every one of them
            self._mean.review()
        self._mean.visit(self._stages.weight, VISITS)
        weight = arrival.evidence["vote"] = self._stages.weight(update.client)
        lead = self._stages.lead * weight if accepted and arrival.known else 0.0
        if remembered:
            replaced = self._mean.replace(update.client, update.delta, *kept, weight, lead, may_take=moves)
        else:
            replaced = self._mean.replace(update.client, update.delta, 0.0, 1.0, None, weight, 0.0, may_take=False)
        return None if replaced is None else (replaced.direction, math.sqrt(replaced.direction_square))

    def agreement(self, delta: Vector) -> float | None:
        if not len(self._mean.mean):
            return None
        return self._cosine(kernels.dot(delta, delta), kernels.dot(delta, self._mean.mean))

    def estimate(self, client: ClientId, params: Vector) -> Vector:
        """What this client would send: its last update."""
        return self._mean.rows.last_delta(client)

    def estimates(self, params: Vector) -> Vector:
        rows = [self._mean.rows.last_delta(client) for client in self._mean.rows]
        return np.array(rows, np.float32).reshape(-1, self._mean.rows.dim)

    def sketch(self, delta: Vector) -> Vector:
        """(w,) the sketch of this update, as if it were of unit length."""
        found = kernels.survey(delta, delta, NOTHING, NOTHING, self._signs, WIDTH)
        return found.sketch / np.float32(math.sqrt(found.square) or 1.0)

    def curvature(self, client: ClientId, delta: Vector, base: Vector) -> float | None:
        """The cosine between how this update and its model differ from the client's last ones; None if it has none."""
        row = self._mean.rows.read(client)
        if row is None:
            return None
        return _curvature(kernels.survey(delta, base, NOTHING, NOTHING, self._signs, WIDTH), row)

    def influence(self, params: Vector, number: int) -> dict[ClientId, float]:
        return self._mean.shares()

    def client_memory(self) -> ClientMemory:
        rows = self._mean.rows
        row, beside = rows.bytes_per_row(WIDTH)
        small = SMALL_BYTES + sum(votes.sketch_bytes for votes in self._stages.votes if isinstance(votes, Directions))
        return ClientMemory(row, beside, self._mean.max_seats, small, self._mean.fixed_bytes, rows.store.where)

    def state_dict(self) -> StateDict:
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Nothing to load."""

    def distances(self, client: ClientId, delta: Vector, base: Vector) -> tuple[float, float]:
        """How far the update and its base model are from the client's reference: |g - g_ref|, about |w - w_ref|."""
        row = self._mean.rows.read(client)
        assert row is not None
        found = kernels.survey(delta, base, self._mean.rows.last_delta(client), NOTHING, self._signs, WIDTH)
        return math.sqrt(found.change), sketch_distance(found.base_sketch, row.base_sketch)

    def _cosine(self, square: float, product: float) -> float | None:
        if not len(self._mean.mean):
            return None
        lengths = square * self._mean.mean_square
        return product / math.sqrt(lengths) if lengths > 0.0 else 0.0


def _curvature(found: kernels.Surveyed, row: Row, share: float = 1.0) -> float | None:
    """About the cosine between how a client's update, or this share of it, and its model changed since its last one."""
    sketch = found.sketch if share == 1.0 else np.float32(share) * found.sketch
    return kernels.cosine(sketch - row.sketch, found.base_sketch - row.base_sketch)
