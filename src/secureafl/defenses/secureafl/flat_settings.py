"""SecureAFL's settings as flat keys, as a Flower or NVFlare app writes them, and the stages they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from secureafl.defenses.secureafl.budget import StepBudget
from secureafl.defenses.secureafl.collusion import Groups
from secureafl.defenses.secureafl.collusion_by_lot import GroupsByLot
from secureafl.defenses.secureafl.combine import Mean, Median, RunningMean, TrimmedMean
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.estimate import HessianProduct, LastUpdate
from secureafl.defenses.secureafl.first_steps import FirstSteps
from secureafl.defenses.secureafl.judges import AgainstConsensus, LipschitzFilter, TooLong
from secureafl.defenses.secureafl.limits import FirstContact, UsualChange, UsualLength
from secureafl.defenses.secureafl.newcomers import Newcomers
from secureafl.defenses.secureafl.operator import OperatorWeights
from secureafl.defenses.secureafl.opposition import PullsBack
from secureafl.defenses.secureafl.sketches import SketchDtype
from secureafl.defenses.secureafl.stages import Combiner, Estimator, Judge, Limit, Stages, Votes
from secureafl.defenses.secureafl.steadiness import Steadiness
from secureafl.defenses.secureafl.votes import RejectedInARow
from secureafl.errors import SettingsError
from secureafl.history import KEPT_AS, Precision, RowSettings, RowStore
from secureafl.settings import Settings

_OF_VOTES = (
    "opposition",
    "alike",
    "sketch_seed",
    "agreement_decay",
    "exclude_after",
    "lead",
    "aggregate",
    "bucket",
    "trim",
)
_OF_EVERYONE = ("opposition", "bucket", "correction", "history", "threads", "sketch_seed")
_OF_RUNNING_MEAN = (
    "too_long",
    "against_consensus",
    "steps_per_interval",
    "step_burst",
    "full_vote_after",
    "newcomer_share",
    "max_newcomers",
    "max_steadiness",
    "max_votes",
    "max_seats",
    "sketch_dtype",
    "vouched",
    "weights",
)
_OF_CORRECTION = ("memory", "correction_bound", "calibration_decay", "triangle", "min_curvature", "refresh_interval")


def split_names(names: Any) -> Any:
    """Names, as a list or as one text with commas, which is all that some engines' settings can hold."""
    return [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else names


def split_weights(weights: Any) -> Any:
    """Weights by name, as a table or as one text: `site-1=0.5, site-2=0`."""
    if not isinstance(weights, str):
        return weights
    pairs = [pair.rpartition("=") for pair in split_names(weights)]
    return {name.strip(): weight for name, _, weight in pairs}


class SecureAFLSettings(Settings):
    """SecureAFL's settings. [P] marks a value of the paper, [P: 0.8] the paper's where the default is another, [A] what
    is ours.
    """

    earlier_names: ClassVar[Mapping[str, str]] = {"silence_after": "exclude_after"}

    percentile: float = Field(0.5, gt=0.0, le=1.0)
    """Share of past Lipschitz factors that `tolerance` is measured from: the paper's alpha. The filter holds as long as
    fewer than 1 - percentile of all updates are extreme. [P: 0.8]"""
    tolerance: float = Field(3.0, gt=0.0)
    """How many times that percentile an update's own factor may be. [P: 1]"""
    too_long: float | None = Field(8.0, gt=1.0)
    """How many times the usual length a known client's update may have; a longer one is rejected, a shorter one is
    shortened to the usual length and then judged. If one of a run's first updates proves to be longer, once three
    clients were heard, the steps until then are taken back. None for any length. For `running_mean`. [A]"""
    window: int | None = Field(1000, ge=1)
    """Judge against the last so many arrivals only; None for all of them. [P: all]"""
    gap_damping: float = Field(1.0, ge=0.0)
    """Factors are measured over sqrt(|w - w_ref|^2 + (gap_damping * typical gap)^2), so that they tell how a client
    behaves and not how little the model moved meanwhile. [P: 0]"""
    filter: Literal["lipschitz", "accept_all", "accept_none"] = "lipschitz"
    """Which updates pass after a client's first: those that change smoothly enough [P], all of them (Variant III) or
    none (Variant IV)."""
    warmup_rounds: int = Field(0, ge=0)
    """Arrivals at the start during which the filter lets everyone pass. [A]"""
    max_change: float | None = Field(1.0, gt=0.0)
    """Limits on an accepted update, in multiples of what is usual. A longer one is shortened to so many times the
    median length. One that is further from its client's last update is moved back to so many times the median change.
    `clip_norm` bounds both. None for no such limits. [P: None]"""
    opposition: float | None = Field(4.0, gt=0.0)
    """How far below everyone's a client's average agreement with the median may be, in spreads of all clients'. Further
    below, the client is excluded. None for no such test. [P: None]"""
    alike: float | None = Field(0.5, gt=0.0, lt=1.0)
    """Two clients are alike if the cosine between the averages of their updates is above this. If a group of alike
    clients is larger than usual, its votes count less: with `running_mean` each weighs less, otherwise some are left
    out, drawn by lot at every step. None for no such limit. [P: None]"""
    sketch_seed: int | None = Field(None, ge=0)
    """Seed of the signs by which `alike` compares clients, for a run that 0.1 began with one. None for the run's secret
    seed, which is drawn when a run begins. Not for `running_mean`. [A]"""
    agreement_decay: float = Field(0.9, ge=0.0, lt=1.0)
    """Weight left of a client's average after its next update, where `opposition` and `alike` look at averages. [A]"""
    exclude_after: int | None = Field(3, ge=1)
    """Rejections in a row after which a client is excluded until it is accepted again. [P: None]"""
    lead: float = Field(0.3, ge=0.0, le=1.0)
    """Share of an accepted update's change, g - g_ref, that moves the model at once, beside its one vote in n. While
    none of its updates is rejected as opposing, a client adds its last minus its first this way in all. [P: 0]"""
    memory: int = Field(3, ge=0)
    """L-BFGS pairs remembered per client, where estimates are corrected: the paper's epsilon. [P]"""
    correction: Literal["none", "raw", "bounded", "calibrated"] = "none"
    """How far estimates follow the Hessian product: not at all, literally [P], never by more than `correction_bound`,
    or bounded and scaled by how well it predicted real arrivals so far. [A]"""
    correction_bound: float = Field(0.5, gt=0.0)
    """Longest correction, as a multiple of the client's last update. [A]"""
    calibration_decay: float = Field(0.99, gt=0.0, lt=1.0)
    """Weight left of one arrival's evidence after the next: an exponential window. [A]"""
    triangle: Literal["strict", "inclusive"] = "strict"
    """Which lower triangle Algorithm 2's Tril takes; `inclusive` annihilates the newest direction. [A]"""
    min_curvature: float = Field(1e-8, ge=0.0)
    """Pairs with s.y <= min_curvature |s||y| are not kept. [A]"""
    clip_norm: float = Field(50.0, gt=0.0)
    """Longest first contact and longest estimate: the paper's G. [P]"""
    history: Literal["accepted", "all"] = "accepted"
    """Which updates become a client's reference: only accepted ones, or also rejected ones. [A]"""
    estimates: bool = True
    """Whether idle clients have a vote; without, the step is the accepted update alone (Variant II). [P]"""
    aggregate: Literal["running_mean", "median", "trimmed_mean", "mean"] = "running_mean"
    """How received and estimated updates become one. `running_mean` costs the same for any number of clients, and has
    its own tests; `median` with the other defaults is the default of 0.1; `mean` is Variant I. [P: median]"""
    against_consensus: float | None = Field(0.75, ge=0.0)
    """A client is excluded while its updates, on average, pull against the mean of all votes at least this share as
    hard as the usual client's pull along with it, or while they push on where the model goes. None for no such tests.
    For `running_mean`. [A]"""
    steps_per_interval: float | None = Field(2.0, gt=0.0)
    """How many updates of one client may move the model while the usual client sends one. Updates beyond that renew
    the client's vote and move nothing. None for no such budget. For `running_mean`. [A]"""
    step_burst: float = Field(8.0, ge=1.0)
    """How many such steps a client may save up. [A]"""
    full_vote_after: int = Field(5, ge=1)
    """Accepted updates after which a client has a whole vote; before, its vote grows with each. For `running_mean`.
    [A]"""
    newcomer_share: float = Field(0.2, gt=0.0, lt=1.0)
    """Share of all votes that clients without a whole vote may have together, once ten others have one. [A]"""
    vouched: Annotated[tuple[str, ...], BeforeValidator(split_names)] = ()
    """Names of clients that you vouch for, with commas between them: a group of them keeps its votes. [A]"""
    weights: Annotated[dict[str, Annotated[float, Field(ge=0.0, le=1.0)]], BeforeValidator(split_weights)] = Field(
        default_factory=dict
    )
    """What the votes of some clients weigh, from 0 to 1, by name: `site-1=0.5, site-2=0`. Others weigh 1. [A]"""
    max_newcomers: int = Field(10_000, ge=1)
    """Clients without a whole vote whose last update is kept. Of more, those heard least recently lose it. [A]"""
    max_steadiness: float | None = Field(None, ge=1.0)
    """How steadily a client may ask for the same, in multiples of what is usual. The vote of one that is steadier weighs
    less, so that in the long run it moves the model no more than that. None for no such limit. For `running_mean`.
    [A]"""
    max_votes: int | None = Field(1000, ge=1)
    """Clients that vote at a time. Of more, who comes without a vote takes that of one drawn by lot. A mean of many old
    updates makes the model swing. None for all whose last update is kept. For `running_mean`. [A]"""
    max_seats: int | None = Field(None, ge=1)
    """Clients whose last update is kept: memory grows with them. Of more, those heard least recently lose theirs, and
    with it their vote until they come back. None for everyone. For `running_mean`. [A]"""
    sketch_dtype: SketchDtype = "float32"
    """How it is kept what each client keeps asking for, 512 numbers for each that was ever heard. int8 takes a quarter
    of the memory. For `running_mean`. [A]"""
    bucket: int = Field(2, ge=1)
    """Votes that are averaged, drawn by lot at every step, before the median is taken. More learn faster where clients
    differ, and resist fewer malicious clients. [P: 1]"""
    trim: float = Field(0.2, ge=0.0, lt=0.5)
    """Share cut from each end by `trimmed_mean`. [A]"""
    history_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """How clients' last updates are kept. For `running_mean` both kinds of 16 bits take half the memory, and a vote is
    what is kept: float16 has a scale per client and eight times the precision of bfloat16, which is faster to make. For
    other aggregates float16 is read in half the time; exact references stay beside it, so that memory is saved only
    where pairs are kept (`correction`). [A]"""
    refresh_interval: int = Field(512, ge=1)
    """Steps after which inner products that are carried along are computed exactly again. [A]"""
    threads: int | None = Field(None, ge=1)
    """Threads that a step may use; None for all of the machine. Results do not depend on it. [A]"""

    @classmethod
    def paper(cls, **changes: Any) -> SecureAFLSettings:
        """The published algorithm. Estimates are clipped, and only usable pairs are kept, as always."""
        return cls(**{**PAPER, **changes})

    @classmethod
    def recorded(cls, given: Mapping[str, Any]) -> Self:
        own = cls.renamed(given)
        while (idle := next(cls.model_construct(**own)._idle_settings(), None)) is not None:
            del own[idle[0]]  # 0.1 took it; it changed nothing
        return cls(**own)

    @model_validator(mode="after")
    def _nothing_idles(self) -> SecureAFLSettings:
        for name, because in self._idle_settings():
            raise SettingsError(f"{name} = {getattr(self, name)!r} does nothing {because}: leave one of them out")
        if self.history == "all" and self.max_change is not None:
            raise SettingsError("history = 'all' keeps updates as they came, max_change shortens them: set one to None")
        if self.history_dtype == "bfloat16" and not self.keeps_rows:
            raise SettingsError(
                "history_dtype = 'bfloat16' is for aggregate = 'running_mean': choose float16 or float32"
            )
        if self.correction != "none" and self.memory == 0:
            raise SettingsError(f"correction = {self.correction!r} needs pairs to correct by: set memory to 1 or more")
        return self

    @property
    def keeps_rows(self) -> bool:
        """Whether a row is kept of each client, which an arrival of its own reads alone."""
        return self.aggregate == "running_mean" and self.estimates

    def _idle_settings(self) -> Iterator[tuple[str, str]]:
        """Settings that were given, change nothing beside the others, and why.

        The paper's values are let pass for compositions that read everyone, so that `PAPER` can be changed in parts.
        """
        for because, names in self._idle():
            for name in names:
                usual = [type(self).model_fields[name].get_default(call_default_factory=True)]
                if name in PAPER and self.aggregate != "running_mean":
                    usual.append(PAPER[name])
                if getattr(self, name) not in usual:
                    yield name, because

    def _idle(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Settings that change nothing, given others, and why."""
        if not self.estimates:
            yield "with estimates = False", (*_OF_VOTES, *_OF_RUNNING_MEAN, "correction", *_OF_CORRECTION)
        if self.correction == "none":
            yield "with correction = 'none'", _OF_CORRECTION
        if self.correction == "raw":
            yield "with correction = 'raw'", ("correction_bound",)
        if self.correction != "calibrated":
            yield f"with correction = {self.correction!r}", ("calibration_decay",)
        if self.aggregate != "trimmed_mean":
            yield f"with aggregate = {self.aggregate!r}", ("trim",)
        if self.filter != "lipschitz":
            yield f"with filter = {self.filter!r}", ("percentile", "tolerance", "warmup_rounds", "too_long")
        if self.aggregate == "running_mean":
            yield "with aggregate = 'running_mean', the default since 0.2 (it was 'median')", _OF_EVERYONE
        else:
            yield f"with aggregate = {self.aggregate!r}", _OF_RUNNING_MEAN
        if self.max_change is None:
            yield "without max_change", ("too_long",)
        if self.steps_per_interval is None:
            yield "without steps_per_interval", ("step_burst",)
        if self.aggregate == "running_mean" and self.against_consensus is None:
            yield "without against_consensus", ("agreement_decay",)
        if self.alike is None and self.opposition is None:
            yield "without alike and opposition", ("agreement_decay",)
        if self.alike is None:
            yield "without alike", ("vouched", "sketch_seed")


PAPER: Mapping[str, Any] = {
    "percentile": 0.8,
    "tolerance": 1.0,
    "window": None,
    "gap_damping": 0.0,
    "max_change": None,
    "opposition": None,
    "alike": None,
    "exclude_after": None,
    "lead": 0.0,
    "correction": "raw",
    "aggregate": "median",
    "bucket": 1,
}
"""The published algorithm, as changes to `SecureAFLSettings`."""

PAPER_VARIANTS: Mapping[str, Mapping[str, object]] = {
    "I": {"aggregate": "mean"},
    "II": {"estimates": False},
    "III": {"filter": "accept_all"},
    "IV": {"filter": "accept_none"},
}
"""The paper's ablations, as changes to `SecureAFLSettings`."""


def build_stages(
    dim: int,
    settings: SecureAFLSettings,
    *,
    server_lr: float = 1.0,
    seed: int = 0,
    history_path: Path | None = None,
    rows: RowSettings = RowSettings(),
) -> Stages:
    """The stages that these settings stand for."""
    if settings.keeps_rows:
        if history_path is not None:
            raise SettingsError("a running mean keeps rows, not a history: set rows = 'mapped', not history_path")
        return _over_sender(dim, settings, seed, rows.row_store(dim, KEPT_AS[settings.history_dtype]))
    if rows.rows != "memory":
        raise SettingsError(f"rows = {rows.rows!r} is for aggregate = 'running_mean': leave one of them out")
    judges: list[Judge] = [_filter(settings, per_client=False)]
    votes: list[Votes] = []
    if settings.opposition is not None:
        consensus = AgainstConsensus(settings.opposition, settings.agreement_decay)
        judges.append(consensus)
        votes.append(consensus)
    if settings.exclude_after is not None:
        votes.append(RejectedInARow(settings.exclude_after))
    if settings.alike is not None:
        votes.append(GroupsByLot(dim, settings.alike, settings.agreement_decay, seed, settings.sketch_seed))
    length, change = _limits(settings, per_client=False)
    return Stages(
        judges=tuple(judges),
        length=length,
        change=change,
        votes=tuple(votes),
        estimate=_estimator(dim, settings, server_lr, history_path),
        combine=_combiner(settings, seed) if settings.estimates else None,
        lead=settings.lead,
        remember_all=settings.history == "all",
    )


def _over_sender(dim: int, settings: SecureAFLSettings, seed: int, store: RowStore) -> Stages:
    judges: list[Judge] = [_filter(settings, per_client=True)]
    beginning = None
    if settings.too_long is not None and settings.max_change is not None and settings.filter == "lipschitz":
        judges.insert(0, TooLong(settings.too_long))
        beginning = FirstSteps(settings.too_long)
    directions = Directions(dim, seed=seed, dtype=settings.sketch_dtype)
    newcomers = Newcomers(settings.full_vote_after, settings.newcomer_share, settings.max_newcomers)
    votes: list[Votes] = [directions, newcomers]
    if settings.against_consensus is not None:
        consensus = PullsBack(directions, share=settings.against_consensus, decay=settings.agreement_decay)
        judges.append(consensus)
        votes.append(consensus)
    if settings.exclude_after is not None:
        votes.append(RejectedInARow(settings.exclude_after))
    if settings.alike is not None:
        votes.append(Groups(directions, settings.alike, seed, settings.vouched))
    if settings.max_steadiness is not None:
        votes.append(Steadiness(directions, settings.max_steadiness))
    if settings.weights:
        votes.append(OperatorWeights(settings.weights))
    length, change = _limits(settings, per_client=True)
    steps = settings.steps_per_interval
    return Stages(
        judges=tuple(judges),
        length=length,
        change=change,
        votes=tuple(votes),
        budget=None if steps is None else StepBudget(steps, settings.step_burst),
        beginning=beginning,
        estimate=None,
        combine=RunningMean(
            dim, settings.clip_norm, settings.max_votes, settings.max_seats, settings.history_dtype, store, seed
        ),
        lead=settings.lead,
    )


def _filter(settings: SecureAFLSettings, *, per_client: bool) -> LipschitzFilter:
    return LipschitzFilter(
        settings.percentile,
        settings.tolerance,
        settings.window,
        settings.gap_damping,
        per_client=per_client,
        passes=_PASSES[settings.filter],
        warmup=settings.warmup_rounds,
    )


def _limits(settings: SecureAFLSettings, *, per_client: bool) -> tuple[Limit, Limit | None]:
    """How long an update may count as, and how far from its sender's last one."""
    if settings.max_change is None:
        return FirstContact(settings.clip_norm), None
    usual = (settings.max_change, settings.window, settings.clip_norm)
    return UsualLength(*usual, per_client=per_client), UsualChange(*usual, per_client=per_client)


_PASSES: Mapping[str, Literal["smooth", "all", "none"]] = {
    "lipschitz": "smooth",
    "accept_all": "all",
    "accept_none": "none",
}


def _estimator(dim: int, settings: SecureAFLSettings, server_lr: float, path: Path | None) -> Estimator:
    precision: Precision = "float16" if settings.history_dtype == "float16" else "float32"
    if settings.correction == "none":
        return LastUpdate(dim, settings.clip_norm, precision=precision, path=path, threads=settings.threads)
    return HessianProduct(
        dim,
        server_lr,
        memory=settings.memory,
        correction=settings.correction,
        bound=settings.correction_bound,
        decay=settings.calibration_decay,
        clip_norm=settings.clip_norm,
        min_curvature=settings.min_curvature,
        strict=settings.triangle == "strict",
        refresh_interval=settings.refresh_interval,
        precision=precision,
        path=path,
        threads=settings.threads,
    )


def _combiner(settings: SecureAFLSettings, seed: int) -> Combiner:
    if settings.aggregate == "median":
        return Median(settings.bucket, seed)
    if settings.aggregate == "trimmed_mean":
        return TrimmedMean(settings.trim, settings.bucket, seed)
    return Mean(settings.bucket, seed)
