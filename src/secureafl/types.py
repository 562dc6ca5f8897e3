"""The nouns everything else is written in: `Model`, `Update`, `Verdict`.

Shapes: d = number of model parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NewType, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float32]
"""A flat float32 array, usually of length d."""

Array: TypeAlias = npt.NDArray[np.generic]
"""An array of any number type, as kept in a state dictionary."""

NamedArrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""A model as frameworks keep it: one array per parameter."""

ClientReturns: TypeAlias = Literal["weights", "delta", "gradient"]
"""What clients send back: the weights they ended at, the start minus those, or a gradient at the start."""

StateDict: TypeAlias = dict[str, Array]
"""All that is needed to go on, bit for bit; only number arrays, so that safetensors can hold it."""


class ArrayInParts(Protocol):
    """An array that is not in memory as a whole, and is read when it is written."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def nbytes(self) -> int: ...

    def parts(self) -> Iterator[memoryview]:
        """Its bytes, in order."""


class ArrayInRows(ArrayInParts, Protocol):
    """Such an array (n, d) of which one row can be read without the others."""

    @property
    def tags(self) -> Sequence[int]:
        """(n,) numbers that are equal only for rows of the same bytes, as long as its owner lives."""

    def __getitem__(self, number: int, /) -> Array:
        """(d,) one row."""


StateView: TypeAlias = dict[str, Array | ArrayInRows]
"""A state dictionary of which some arrays are read when they are written. It is good until the next step."""

MAX_VALUE = 1e18
"""Largest coordinate an update may have: its square, and any sum of them, is still a number."""

ClientId = NewType("ClientId", int)
"""A client's enrolment number, 0, 1, 2, … in the order the server met its clients.

The server gives it; a client never does. Names from the outside world (Flower's node ids, NVFlare's
site names) live in the server's roster.
"""


class Reason(StrEnum):
    """Why an update was accepted or not. A defense of your own may use words of its own."""

    ACCEPTED = "accepted"
    FIRST_CONTACT = "first-contact"
    BUFFERED = "buffered"
    OVER_BUDGET = "over-budget"
    FROM_ABOVE = "from-above"

    NOT_FINITE = "not-finite"
    TOO_LARGE = "too-large"
    WRONG_SHAPE = "wrong-shape"
    WRONG_DTYPE = "wrong-dtype"
    WRONG_NAMES = "wrong-names"
    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad-signature"
    UNSOLICITED = "unsolicited"
    TICKET_CLOSED = "ticket-closed"
    TOO_STALE = "too-stale"
    MODEL_OVERFLOW = "model-overflow"

    TOO_LONG = "too-long"
    CHANGED_TOO_ABRUPTLY = "changed-too-abruptly"
    CHANGED_ON_SAME_MODEL = "changed-on-same-model"
    FILTER_CLOSED = "filter-closed"
    AGAINST_CONSENSUS = "against-consensus"
    TOO_FREQUENT = "too-frequent"
    AGAINST_REFERENCE = "against-reference"
    FAR_FROM_REFERENCE = "far-from-reference"
    FAR_FROM_GROUP = "far-from-group"
    TOO_UNCERTAIN = "too-uncertain"


REFUSALS = frozenset(
    {
        Reason.NOT_FINITE,
        Reason.TOO_LARGE,
        Reason.WRONG_SHAPE,
        Reason.WRONG_DTYPE,
        Reason.WRONG_NAMES,
        Reason.MALFORMED,
        Reason.BAD_SIGNATURE,
    }
)
"""Updates that no defense could judge: no working client sends one."""

UNJUDGED = REFUSALS | {Reason.TOO_STALE}
"""Updates that are refused without being judged. They are no arrivals: they move no version."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One version of the global model. Versions count arrivals, so two versions may hold equal parameters."""

    version: int
    params: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one client sent, beside the model the *server* knows it started from.

    `delta` points uphill, like a gradient: the server moves the model by `-server_lr * delta`.
    """

    client: ClientId
    base: Model
    delta: Vector

    def fault(self, dim: int) -> Reason | None:
        """Why this update cannot be judged at all, or None if it is a float32 vector of length `dim`, finite and within
        `MAX_VALUE`.
        """
        if not isinstance(self.delta, np.ndarray) or self.delta.dtype != np.float32:
            return Reason.WRONG_DTYPE
        if self.delta.shape != (dim,):
            return Reason.WRONG_SHAPE
        largest = np.maximum(self.delta.max(initial=0.0), -self.delta.min(initial=0.0))  # NaN if there is one
        if not np.isfinite(largest):
            return Reason.NOT_FINITE
        return Reason.TOO_LARGE if largest > MAX_VALUE else None


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a defense made of one update.

    accepted   whether the update itself was accepted
    reason     a `Reason`, or a defense's own word
    direction  (d,) what the server steps along, or None for no step; a rejected update can still lead to a
               step (SecureAFL moves on the estimates alone), an accepted one to none (BASGD buffers it)
    evidence   the numbers behind it, for the audit trail
    """

    accepted: bool
    reason: str
    direction: Vector | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)


def refuse(reason: str, **evidence: float) -> Verdict:
    """A verdict that leaves the model where it is."""
    return Verdict(accepted=False, reason=reason, evidence=evidence)
