"""BASGD: average arrivals in a few buffers and step along the robust middle of the buffers once each holds something.

Y.-R. Yang and W.-J. Li, "BASGD: Buffered Asynchronous SGD for Byzantine Learning", ICML 2021.

    client i goes to buffer i mod B;  h_b = mean of the arrivals in buffer b
    when no buffer is empty: step along median (or trimmed mean) of h_0..h_{B-1}, then empty all

The theory asks for B >= 2f + 1. Reassigning the buffers of silent clients, a later addition, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from secureafl import kernels
from secureafl.defenses.base import norm, staleness
from secureafl.errors import SettingsError
from secureafl.settings import Settings
from secureafl.types import Array, Model, Reason, StateDict, Update, Vector, Verdict, refuse


class BASGDSettings(Settings):
    """BASGD's settings."""

    num_buffers: int = Field(10, ge=1)
    """Buffers B. More resist more malicious clients and step more rarely. [A: the original used 10 and 15]"""
    aggregate: Literal["median", "trimmed_mean"] = "median"
    """How the buffers become one step. [O: either]"""
    num_trimmed: int = Field(3, ge=0)
    """Values cut from each end by `trimmed_mean`; the theory asks for at least the number of malicious clients. [A]"""

    @model_validator(mode="after")
    def _enough_buffers(self) -> BASGDSettings:
        if self.aggregate == "trimmed_mean" and 2 * self.num_trimmed >= self.num_buffers:
            raise SettingsError(f"num_trimmed = {self.num_trimmed} leaves nothing of num_buffers = {self.num_buffers}")
        return self


class BASGD:
    """Holds B running means."""

    def __init__(self, dim: int, settings: BASGDSettings = BASGDSettings()) -> None:
        self._dim = dim
        self.settings = settings
        self._means: Vector = np.zeros((settings.num_buffers, dim), np.float32)
        self._counts: npt.NDArray[np.int64] = np.zeros(settings.num_buffers, np.int64)

    def step(self, update: Update, model: Model) -> Verdict:
        if fault := update.fault(self._dim):
            return refuse(fault)
        buffer = update.client % self.settings.num_buffers
        self._counts[buffer] += 1
        self._means[buffer] += (update.delta - self._means[buffer]) / np.float32(self._counts[buffer])
        evidence = {
            "norm": norm(update.delta),
            "staleness": float(staleness(update, model)),
            "buffer": float(buffer),
            "num_empty_buffers": float(np.count_nonzero(self._counts == 0)),
        }
        if (self._counts == 0).any():
            return Verdict(True, Reason.BUFFERED, None, evidence)
        direction = self._combine()
        self._means[:], self._counts[:] = 0.0, 0
        return Verdict(True, Reason.ACCEPTED, direction, evidence)

    def state_dict(self) -> StateDict:
        return {"means": self._means.copy(), "counts": self._counts.copy()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._means = np.array(state["means"], np.float32)
        self._counts = np.array(state["counts"], np.int64)

    def _combine(self) -> Vector:
        if self.settings.aggregate == "median":
            return kernels.coordinate_median(self._means)
        return kernels.trimmed_mean(self._means, self.settings.num_trimmed)
