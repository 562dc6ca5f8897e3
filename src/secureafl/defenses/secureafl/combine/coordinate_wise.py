"""The coordinate-wise median, trimmed mean and mean of everyone's votes, in one pass over all of them: O(n d).

    g = median(received if accepted, estimates of the others)      Eqs. (4)-(5)

Votes may first be averaged in buckets, drawn by lot at every step: more learn faster where clients differ, and resist
fewer malicious ones (decision 0021).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from secureafl import kernels
from secureafl.defenses.secureafl.stages import Ballot, Combiner
from secureafl.history import Float
from secureafl.types import Vector


class _CoordinateWise(Combiner):
    def __init__(self, bucket: int = 1, seed: int = 0) -> None:
        """`bucket` votes, drawn by lot from a secret `seed`, are averaged before they are ordered."""
        self._bucket = bucket
        self._seed = seed

    def combine(self, ballot: Ballot) -> kernels.Step:
        estimator, num_votes = ballot.estimator, ballot.num_votes
        return estimator.history.step(
            ballot.weights,
            ballot.params,
            ballot.sender,
            ballot.vote,
            self._rule(-(-num_votes // self._bucket)),
            estimator.server_lr or 1.0,
            lead=ballot.lead,
            excluded=ballot.excluded,
            follow=estimator.follows,
            order=shuffled(num_votes, ballot.number ^ self._seed) if self._bucket > 1 else None,
            bucket=self._bucket,
        )

    def _rule(self, num_votes: int) -> kernels.Rule:
        raise NotImplementedError


class Median(_CoordinateWise):
    """The middle value of each coordinate: no minority can move it beyond what others sent."""

    def influence(self, votes: Vector) -> Float:
        """How often each vote is the middle one. Of two middle ones each counts half; votes are taken singly."""
        n, d = votes.shape
        order = np.argsort(votes, axis=0, kind="stable")
        shares = np.zeros(n)
        for place in ((n - 1) // 2, n // 2) if n else ():
            shares += np.bincount(order[place], minlength=n) / (2 * d)
        return shares

    def _rule(self, num_votes: int) -> kernels.Rule:
        return kernels.Rule.median(num_votes)


class TrimmedMean(_CoordinateWise):
    """The mean of each coordinate without a share `trim` of all votes at each end."""

    def __init__(self, trim: float = 0.2, bucket: int = 1, seed: int = 0) -> None:
        super().__init__(bucket, seed)
        self._trim = trim

    def _rule(self, num_votes: int) -> kernels.Rule:
        return kernels.Rule.trimmed_mean(num_votes, math.floor(self._trim * num_votes))


class Mean(_CoordinateWise):
    """The mean of each coordinate: Variant I of the paper's ablation."""

    def _rule(self, num_votes: int) -> kernels.Rule:
        return kernels.Rule.mean(num_votes)


def shuffled(num_votes: int, key: int) -> npt.NDArray[np.int64]:
    """The votes' places of one arrival: drawn by lot, and the same when the arrival is repeated."""
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_votes)
