"""What arrived and what became of it: one row per arrival, in columns."""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from secureafl.types import Array, StateDict, Verdict

Column = npt.NDArray[np.generic]
NUMBERS = ("lipschitz_factor", "norm", "staleness")
"""Evidence kept per arrival; what a defense does not report is NaN."""


class Trace:
    """Grows by one row per arrival; small enough to keep whole."""

    def __init__(self) -> None:
        self._client = array("q")
        self._base = array("q")
        self._batch = array("q")
        self._accepted = array("b")
        self._reason = array("q")
        self._numbers = {name: array("d") for name in NUMBERS}
        self.reasons: list[str] = []

    def __len__(self) -> int:
        return len(self._client)

    def add(self, client: int, base: int, batch: int, verdict: Verdict) -> None:
        """Append one arrival; `batch` is a checksum of the honest samples it drew."""
        if verdict.reason not in self.reasons:
            self.reasons.append(str(verdict.reason))
        self._client.append(client)
        self._base.append(base)
        self._batch.append(batch)
        self._accepted.append(verdict.accepted)
        self._reason.append(self.reasons.index(verdict.reason))
        for name, column in self._numbers.items():
            column.append(verdict.evidence.get(name, math.nan))

    def columns(self) -> dict[str, Column]:
        """All rows as NumPy columns; `reason` points into `reasons`."""
        return {
            "client": np.array(self._client, np.int64),
            "base": np.array(self._base, np.int64),
            "batch": np.array(self._batch, np.int64),
            "accepted": np.array(self._accepted, np.int8).astype(bool),
            "reason": np.array(self._reason, np.int64),
            **{name: np.array(column, np.float64) for name, column in self._numbers.items()},
        }

    def arrivals_sha256(self) -> str:
        """Who answered for which version with which samples: equal for every defense and attack on one seed."""
        columns = self.columns()
        rows = np.stack([columns[name].astype("<i8") for name in ("client", "base", "batch")], axis=1)
        return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()

    def state_dict(self) -> StateDict:
        columns = self.columns()
        return {
            **columns,
            "accepted": columns["accepted"].astype(np.int8),
            "reasons": np.frombuffer(json.dumps(self.reasons).encode(), np.uint8).copy(),
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self._client = array("q", np.asarray(state["client"]).tolist())
        self._base = array("q", np.asarray(state["base"]).tolist())
        self._batch = array("q", np.asarray(state["batch"]).tolist())
        self._accepted = array("b", np.asarray(state["accepted"]).tolist())
        self._reason = array("q", np.asarray(state["reason"]).tolist())
        self._numbers = {name: array("d", np.asarray(state[name]).tolist()) for name in NUMBERS}
        self.reasons = json.loads(np.asarray(state["reasons"], np.uint8).tobytes())
