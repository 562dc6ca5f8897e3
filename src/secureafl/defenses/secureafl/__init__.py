"""SecureAFL: judge the arriving update by how abruptly its sender changed, estimate what everyone else would send now,
and step along a robust combination of both.

A. Gao, F. Wang, Z. Wan, Y. Quan, Z. Liu, M. Fang, "SecureAFL: Secure Asynchronous Federated Learning", ASIA CCS 2026.

The method is a pipeline of small stages. Two compositions of them stand below, side by side: `published` is the paper's
algorithm, `default` is ours (decisions 0015 to 0022 say why they differ). `SecureAFL` builds either, and what lies
between, from flat settings. For a stage of your own, take one of them and replace a part:

    from dataclasses import replace
    from secureafl.defenses.secureafl import Pipeline, default

    stages = default(dim)
    defense = Pipeline(replace(stages, judges=(*stages.judges, MyJudge())))
"""

from __future__ import annotations

import math
from pathlib import Path

from secureafl.defenses.secureafl.budget import StepBudget
from secureafl.defenses.secureafl.collusion import Groups
from secureafl.defenses.secureafl.collusion_by_lot import GroupsByLot
from secureafl.defenses.secureafl.combine import Mean, Median, RunningMean, TrimmedMean
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.estimate import HessianProduct, LastUpdate
from secureafl.defenses.secureafl.first_steps import FirstSteps
from secureafl.defenses.secureafl.flat_settings import PAPER, PAPER_VARIANTS, SecureAFLSettings, build_stages
from secureafl.defenses.secureafl.judges import AgainstConsensus, LipschitzFilter, TooLong
from secureafl.defenses.secureafl.limits import FirstContact, Usual, UsualChange, UsualLength
from secureafl.defenses.secureafl.newcomers import Newcomers
from secureafl.defenses.secureafl.operator import OperatorWeights
from secureafl.defenses.secureafl.opposition import PullsBack
from secureafl.defenses.secureafl.passes import OverSender
from secureafl.defenses.secureafl.pipeline import Pipeline
from secureafl.defenses.secureafl.stages import Arrival, Budget, Combiner, Estimator, Judge, Limit, Stages, Votes
from secureafl.defenses.secureafl.steadiness import Steadiness
from secureafl.defenses.secureafl.votes import RejectedInARow
from secureafl.history import RowSettings
from secureafl.names_of_0_1 import Formerly
from secureafl.types import ClientId, Vector


def published(dim: int, server_lr: float = 1.0) -> Stages:
    """The published algorithm."""
    return Stages(
        judges=(LipschitzFilter(percentile=0.8),),
        length=FirstContact(clip_norm=50.0),
        estimate=HessianProduct(dim, server_lr, memory=3, clip_norm=50.0),
        combine=Median(),
    )


def default(dim: int, seed: int = 0) -> Stages:
    """The composition that `SecureAFLSettings()` stands for; decisions 0015 to 0025 say how it differs and why."""
    directions = Directions(dim, seed=seed)
    consensus = PullsBack(directions, limit=4.0, share=0.75)
    smooth = LipschitzFilter(percentile=0.5, tolerance=3.0, window=1000, gap_damping=1.0, per_client=True)
    return Stages(
        judges=(TooLong(limit=8.0), smooth, consensus),
        length=UsualLength(window=1000, clip_norm=50.0, per_client=True),
        change=UsualChange(window=1000, clip_norm=50.0, per_client=True),
        votes=(
            directions,
            Newcomers(full_after=5, share=0.2),
            consensus,
            RejectedInARow(limit=3),
            Groups(directions, limit=0.5, seed=seed),
        ),
        budget=StepBudget(per_interval=2.0, burst=8.0),
        beginning=FirstSteps(limit=8.0),
        estimate=None,
        combine=RunningMean(dim, clip_norm=50.0),
        lead=0.3,
    )


def median(dim: int, seed: int = 0) -> Stages:
    """The default of 0.1, which `SecureAFLSettings(aggregate="median")` stands for: it reads everyone at each step."""
    consensus = AgainstConsensus(limit=4.0)
    return Stages(
        judges=(LipschitzFilter(percentile=0.5, tolerance=3.0, window=1000, gap_damping=1.0), consensus),
        length=UsualLength(window=1000, clip_norm=50.0),
        change=UsualChange(window=1000, clip_norm=50.0),
        votes=(consensus, RejectedInARow(limit=3), GroupsByLot(dim, limit=0.5, seed=seed)),
        estimate=LastUpdate(dim, clip_norm=50.0),
        combine=Median(bucket=2, seed=seed),
        lead=0.3,
    )


class SecureAFL(Pipeline):
    """The pipeline that flat settings describe. Its settings are what attacks that know the method look at."""

    def __init__(
        self,
        dim: int,
        settings: SecureAFLSettings = SecureAFLSettings(),
        *,
        server_lr: float = 1.0,
        seed: int = 0,
        history_path: Path | None = None,
        rows: RowSettings = RowSettings(),
    ) -> None:
        """
        server_lr     the server's learning rate, which a corrected estimate depends on
        seed          of the lots and sketches: secret, as who knows it can tell whose vote counts when
        history_path  directory for a memory-mapped history of an aggregate that reads everyone
        rows          where a running mean keeps clients' last updates
        """
        stages = build_stages(dim, settings, server_lr=server_lr, seed=seed, history_path=history_path, rows=rows)
        super().__init__(stages)
        self.settings = settings

    silent = Formerly("excluded()")

    @classmethod
    def paper(cls, dim: int, *, server_lr: float = 1.0) -> SecureAFL:
        """The published algorithm."""
        return cls(dim, SecureAFLSettings.paper(), server_lr=server_lr)

    def allowance(self, client: ClientId, base: Vector) -> float:
        """How far an update for `base` may be from the client's last one and still pass the filter; infinite where the
        filter does not judge it.
        """
        if client not in self.history:
            return math.inf
        lipschitz = self._named["filter"]
        assert isinstance(lipschitz, LipschitzFilter)
        param_change = self.passes.distances(client, self.history.last_delta(client), base)[1]
        return lipschitz.allowance(param_change, self._num_arrivals)

    def would_oppose(self, client: ClientId, delta: Vector, base: Vector) -> bool:
        """Whether this update for `base` would cost its sender the vote, as one who is against the consensus."""
        judge, agreement = self._named.get("consensus"), self.passes.agreement(delta)
        if agreement is None:
            return False
        if isinstance(judge, AgainstConsensus):
            return judge.agreement.would_oppose(client, agreement)
        if isinstance(judge, PullsBack) and isinstance(self.passes, OverSender):
            curvature = self.passes.curvature(client, delta, base)
            return judge.would_oppose(client, agreement, self.passes.sketch(delta), curvature)
        return False

    def would_be_alike(self, client: ClientId, delta: Vector) -> bool:
        """Whether this update would make its sender one of a group that is larger than usual."""
        groups = self._named.get("groups")
        if isinstance(groups, Groups) and isinstance(self.passes, OverSender):
            return groups.would_be_alike(client, self.passes.sketch(delta))
        return False

    def limits(self, client: ClientId) -> tuple[float, float]:
        """How long this client's next update counts as at most, and how far from its last one."""
        length, change = self.stages.length, self.stages.change
        longest = length.present if isinstance(length, Usual) else math.inf
        furthest = change.present if isinstance(change, Usual) and client in self.history else math.inf
        return longest, furthest


__all__ = [
    "PAPER",
    "PAPER_VARIANTS",
    "AgainstConsensus",
    "Arrival",
    "Budget",
    "Combiner",
    "Directions",
    "Estimator",
    "FirstContact",
    "FirstSteps",
    "Groups",
    "GroupsByLot",
    "HessianProduct",
    "Judge",
    "LastUpdate",
    "Limit",
    "LipschitzFilter",
    "Mean",
    "Median",
    "Newcomers",
    "OperatorWeights",
    "Pipeline",
    "PullsBack",
    "RejectedInARow",
    "RunningMean",
    "SecureAFL",
    "SecureAFLSettings",
    "Stages",
    "Steadiness",
    "StepBudget",
    "TooLong",
    "TrimmedMean",
    "UsualChange",
    "UsualLength",
    "Votes",
    "default",
    "median",
    "published",
]
