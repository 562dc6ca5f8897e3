"""Adaptive: know SecureAFL exactly and send the worst update that it will accept.

The SecureAFL paper says of it one sentence, after V. Shejwalkar and A. Houmansadr (NDSS 2021): maximise the deviation
from the aggregate before the attack. All else here is ours. With a = the sender's reference, q = the filter's threshold
now and w_i the reference's base model:

    feasible   |m - a| <= r = (1 - margin) q |w_b - w_i|          passes the filter
               |m| <= G                                           where there is no filter yet
               |m - a| <= usual change, |m| <= usual length       counts in full, where the defense has such limits
    c          median of the honest clients' estimates, or their mean where the defense takes the mean
    J(m)       | median(honest estimates and f copies of m) - c |, or with the mean in both places

Copies, because an accepted update stays in the sender's slot, and f such slots fill up. Candidates are the furthest
feasible points of the rays c + gamma p, p in { -sign c, -c/|c|, -std of the estimates }; where a ray misses the region,
the point of the region nearest to far along it; the reference itself, which always passes; and the reversed gradient,
brought into the region. Those that would cost the sender its vote are left out: as one against the consensus, or, where
the defense says so beforehand, as one of a group that is too much alike. If none remains it sends its honest gradient,
and waits. The best one on a ray is drawn back to the smallest gamma that keeps 0.999 of J. Nothing is random.

A budget of steps is no limit here: its clients answer at the usual pace, and within it.

The median with f copies needs no copies: each of its order statistics is m held between two of the honest values.

Shapes: n = honest estimates, d = parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from secureafl.defenses import SecureAFL
from secureafl.lab.attacks.attack import Float, Stateless, View, length, may_diverge
from secureafl.settings import Settings
from secureafl.types import ClientId, Vector

MEDIAN_LIKE = {"median", "trimmed_mean"}
"""Ways to make one step of all votes that few copies cannot move beyond what others sent."""
NUM_PROJECTIONS = 20


class AdaptiveSettings(Settings):
    """The adaptive attack's settings."""

    margin: float = Field(1e-6, ge=0.0, lt=1.0)
    """Share of the feasible radius left unused, so that rounding does not lead to rejection. [A]"""
    keep: float = Field(0.999, gt=0.0, le=1.0)
    """Share of the best effect that must remain when its ray is shortened. [A]"""
    num_bisections: int = Field(20, ge=1)
    """Halvings in the search for the shortest such ray. [A]"""
    reach: float = Field(10.0, gt=0.0)
    """How far along a ray that misses the ball one looks, in lengths of the longest estimate. [A]"""


@runtime_checkable
class HasLimits(Protocol):
    """A defense that can tell how much of an update would count."""

    def limits(self, client: ClientId) -> tuple[float, float]:
        """The longest update of this client that counts in full, and the furthest from its last one."""


@runtime_checkable
class CountsGroups(Protocol):
    """A defense that can tell whose votes it would take away as those of a group."""

    def would_be_alike(self, client: ClientId, delta: Vector) -> bool:
        """Whether this update would make its sender one of too many who are alike."""


@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """Updates within `radius` of `centre` (d,) will pass; `judged` if it is the filter that says so."""

    centre: Float
    radius: float
    judged: bool = True

    def project(self, point: Float) -> Float:
        """The nearest point of the ball."""
        offset = point - self.centre
        size = length(offset)
        return point if size <= self.radius else np.asarray(self.centre + offset * (self.radius / size))

    def interval(self, origin: Float, p: Float) -> tuple[float, float] | None:
        """The gammas >= 0 with origin + gamma p in the ball, or None if the ray misses it; p must not vanish."""
        gap = origin - self.centre
        a, b, c = float(p @ p), float(p @ gap), float(gap @ gap) - self.radius**2
        discriminant = b * b - a * c
        if discriminant < 0.0:
            return None
        last = (-b + math.sqrt(discriminant)) / a
        return (max(0.0, (-b - math.sqrt(discriminant)) / a), last) if last >= 0.0 else None


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Updates that will pass and count in full: a ball around the reference, and one around zero."""

    near: Ball
    short: Ball

    @property
    def centre(self) -> Float:
        return self.near.centre

    @property
    def judged(self) -> bool:
        return self.near.judged

    def project(self, point: Float) -> Float:
        """A point of both balls near this one; of the first alone, where they do not meet."""
        point = self.near.project(point)
        for _ in range(NUM_PROJECTIONS):
            if length(point) <= self.short.radius:
                break
            point = self.near.project(self.short.project(point))
        return point

    def interval(self, origin: Float, p: Float) -> tuple[float, float] | None:
        """The gammas >= 0 with origin + gamma p in both balls, or None."""
        near, short = self.near.interval(origin, p), self.short.interval(origin, p)
        if near is None or short is None or max(near[0], short[0]) > min(near[1], short[1]):
            return None
        return max(near[0], short[0]), min(near[1], short[1])


class Effect(Protocol):
    """J: how far f copies of an update move what the honest estimates give, c."""

    @property
    def before(self) -> Float:
        """c."""

    def __call__(self, update: Float) -> float: ...


class MeanEffect:
    """J where votes are averaged: n estimates and f copies of m give c + f / (n + f) (m - c)."""

    def __init__(self, estimates: Vector, num_copies: int) -> None:
        self.before: Float = estimates.mean(axis=0, dtype=np.float64)
        self._share = num_copies / (len(estimates) + num_copies)

    def __call__(self, update: Float) -> float:
        return self._share * length(update - self.before)


class MedianEffect:
    """J: how far f copies of an update move the median of the honest estimates, c."""

    def __init__(self, estimates: Vector, num_copies: int) -> None:
        ordered = np.sort(estimates, axis=0)
        n = len(ordered)
        self.before: Float = 0.5 * (ordered[(n - 1) // 2].astype(np.float64) + ordered[n // 2])
        total = n + num_copies
        self._bounds = [_bounds(ordered, place, num_copies) for place in ((total - 1) // 2, total // 2)]

    def median(self, update: Float) -> Float:
        """The median of the estimates and the copies."""
        lower, upper = (np.clip(update, low, high) for low, high in self._bounds)
        return np.asarray(0.5 * (lower + upper))

    def __call__(self, update: Float) -> float:
        return length(self.median(update) - self.before)


def _bounds(ordered: Vector, place: int, num_copies: int) -> tuple[Float, Float]:
    """Between what the `place`-th of all values lies: the honest one it is with all copies below it, or above it."""
    n, d = ordered.shape
    low = ordered[place - num_copies] if place >= num_copies else np.full(d, -np.inf)
    high = ordered[place] if place < n else np.full(d, np.inf)
    return low.astype(np.float64), high.astype(np.float64)


def directions(estimates: Vector, middle: Float) -> list[Float]:
    """The ways p to leave the median, without those that vanish."""
    size = length(middle)
    spread = estimates.std(axis=0).astype(np.float64)
    ways = [-np.sign(middle), -middle / size if size > 0.0 else middle, -spread]
    return [p for p in ways if p.any()]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """An update that will pass; on a ray, also its direction p and the gammas that are feasible there."""

    update: Float
    p: Float | None = None
    interval: tuple[float, float] = (0.0, 0.0)


def ray_candidate(origin: Float, p: Float, ball: Ball | Region, reach: float) -> Candidate:
    """The furthest feasible point of a ray, or what is nearest to far along it."""
    interval = ball.interval(origin, p)
    if interval is None:
        return Candidate(ball.project(origin + reach / length(p) * p))
    return Candidate(origin + interval[1] * p, p, interval)


def shortened(effect: Effect, best: Candidate, keep: float, num_bisections: int) -> Float:
    """The point nearest to the median on the candidate's ray that keeps that share of its effect."""
    if best.p is None:
        return best.update
    enough, (low, high) = keep * effect(best.update), best.interval
    if effect(effect.before + low * best.p) >= enough:
        return np.asarray(effect.before + low * best.p)
    for _ in range(num_bisections):  # J does not fall along a ray
        middle = 0.5 * (low + high)
        low, high = (low, middle) if effect(effect.before + middle * best.p) >= enough else (middle, high)
    return np.asarray(effect.before + high * best.p)


def feasible(shadow: SecureAFL, client: ClientId, base: Vector, margin: float) -> Ball:
    """What SecureAFL's filter would accept of this client now."""
    radius = shadow.allowance(client, base)
    if math.isinf(radius):
        return Ball(np.zeros(len(base)), (1.0 - margin) * shadow.settings.clip_norm, judged=False)
    return Ball(shadow.history.last_delta(client).astype(np.float64), (1.0 - margin) * radius)


def region(shadow: SecureAFL, client: ClientId, base: Vector, margin: float) -> Ball | Region:
    """What would pass and count in full, as far as the defense tells."""
    near = feasible(shadow, client, base, margin)
    if not isinstance(shadow, HasLimits):
        return near
    longest, furthest = shadow.limits(client)
    if client in shadow.history:
        near = Ball(near.centre, min(near.radius, (1.0 - margin) * furthest), near.judged)
    return Region(near, Ball(np.zeros(len(base)), (1.0 - margin) * longest))


def effect_of(shadow: SecureAFL, estimates: Vector, num_copies: int) -> Effect:
    """What copies of an update do to the step that this defense makes of all votes."""
    if shadow.settings.aggregate in MEDIAN_LIKE:
        return MedianEffect(estimates, num_copies)
    return MeanEffect(estimates, num_copies)


class Adaptive(Stateless):
    """Looks into the server and answers with the worst it will take."""

    def __init__(self, settings: AdaptiveSettings = AdaptiveSettings()) -> None:
        self.settings = settings

    @may_diverge
    def update(self, view: View) -> Vector:
        ball = region(view.shadow, view.client, view.base.params, self.settings.margin)
        reverse = Candidate(ball.project(-view.gradient.astype(np.float64)))
        honest = np.array([client not in view.malicious for client in view.shadow.history.clients], np.bool_)
        if not honest.any():
            return self._rounded(view, ball, reverse.update)
        estimates = view.shadow.estimates(view.model.params)[honest]
        effect = effect_of(view.shadow, estimates, len(view.malicious))
        reach = self.settings.reach * max(length(row) for row in estimates)
        rays = [ray_candidate(effect.before, p, ball, reach) for p in directions(estimates, effect.before)]
        candidates = [*rays, Candidate(ball.centre), reverse]
        accepted = [candidate for candidate in candidates if not _loses_vote(view, candidate)]
        harmless = Candidate(ball.project(view.gradient.astype(np.float64)))
        best = max(accepted or [harmless], key=lambda candidate: effect(candidate.update))
        return self._rounded(view, ball, shortened(effect, best, self.settings.keep, self.settings.num_bisections))

    def _rounded(self, view: View, ball: Ball | Region, update: Float) -> Vector:
        """The update in float32, drawn towards the ball's centre until the server's own arithmetic lets it pass."""
        offset, share = update - ball.centre, max(self.settings.margin, 1e-7)
        while share < 1.0:
            sent = np.asarray(ball.centre + offset, np.float32)
            if not ball.judged or _passes(view, sent):
                return sent
            offset, share = offset * (1.0 - share), 2.0 * share
        return np.asarray(ball.centre, np.float32)


def _loses_vote(view: View, candidate: Candidate) -> bool:
    """Whether sending this would cost the client its vote."""
    shadow, sent = view.shadow, candidate.update.astype(np.float32)
    if shadow.would_oppose(view.client, sent, view.base.params):
        return True
    return isinstance(shadow, CountsGroups) and shadow.would_be_alike(view.client, sent)


def _passes(view: View, sent: Vector) -> bool:
    change, _ = view.shadow.distances(view.client, sent, view.base.params)
    return change <= view.shadow.allowance(view.client, view.base.params)
