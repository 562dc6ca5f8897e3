"""What every defense is: a rule that turns one arriving update into a verdict and, perhaps, a step of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from secureafl import kernels
from secureafl.text import in_bytes
from secureafl.types import Array, ArrayInRows, ClientId, Model, StateDict, StateView, Update, Vector, Verdict


@runtime_checkable
class Defense(Protocol):
    """A deterministic rule with explicit state. It reads no clock, file, socket or global generator.

    `step` never raises for what a client sent: a malformed update gets a refusing verdict and leaves no trace.
    """

    def step(self, update: Update, model: Model) -> Verdict:
        """Judge `update`, which arrives while `model` is current."""

    def state_dict(self) -> StateDict:
        """All that is needed to go on, bit for bit."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` of an equally configured object returned."""


@dataclass(frozen=True, slots=True)
class ClientMemory:
    """What a defense takes for its clients, in bytes.

    row       of each client whose last update is kept, where rows lie
    beside    of each of these in memory, beside its row
    max_rows  of so many clients at most; None for everyone
    client    of every client that was ever heard
    fixed     however few there are
    rows_in   where rows lie
    enrolled  of every client that is enrolled, heard or not: its name
    """

    row: int
    beside: int
    max_rows: int | None
    client: int
    fixed: int
    rows_in: str = "memory"
    enrolled: int = 0

    def in_memory(self, num_clients: int, num_enrolled: int | None = None) -> int:
        """Bytes of memory for so many clients, at most; of those that are enrolled only so many were heard."""
        each = self.beside + (self.row if self.rows_in == "memory" else 0)
        names = self.enrolled * (num_clients if num_enrolled is None else num_enrolled)
        return self.fixed + self._num_rows(num_clients) * each + num_clients * self.client + names

    def elsewhere(self, num_clients: int) -> int:
        """Bytes that their rows take where they lie, if that is not in memory."""
        return 0 if self.rows_in == "memory" else self._num_rows(num_clients) * self.row

    def _num_rows(self, num_clients: int) -> int:
        return num_clients if self.max_rows is None else min(num_clients, self.max_rows)

    def __str__(self) -> str:
        each = self.beside + (self.row if self.rows_in == "memory" else 0)
        said = f"{in_bytes(each)} for each client whose last update is kept"
        if self.max_rows is None:
            said += ", which is everyone (max_seats limits it)"
        else:
            said += f", {self.max_rows:,} at most: {in_bytes(self.max_rows * each)}"
        if self.rows_in != "memory":
            limit = "" if self.max_rows is None else f", {in_bytes(self.max_rows * self.row)} at most"
            said += f"; its row, {in_bytes(self.row)}, in the {self.rows_in}{limit}"
        said += f"; {in_bytes(self.client)} for each client ever heard"
        if self.enrolled:
            said += f", {in_bytes(self.enrolled)} for each enrolled"
        return f"{said}; {in_bytes(self.fixed)} besides"


@runtime_checkable
class SaysMemory(Protocol):
    """A defense that keeps something of each client may say how much."""

    def client_memory(self) -> ClientMemory:
        """What it takes for its clients."""


@runtime_checkable
class ViewsState(Protocol):
    """A defense whose state may be larger than memory has another way to save it."""

    def state_view(self) -> StateView:
        """As `state_dict`, but large arrays are read row by row when they are written. Good until the next step."""


@runtime_checkable
class ExcludesClients(Protocol):
    """A defense that takes some clients' votes away may say whose."""

    def excluded(self) -> Mapping[ClientId, str]:
        """Known clients that have no vote until further notice, and why."""


@runtime_checkable
class MeetsClients(Protocol):
    """A defense that treats some clients as their operator says wants to know who is who."""

    def meet(self, client: ClientId, name: str) -> None:
        """The outside world calls this client so. Told once for each client, and again after a restart."""


@runtime_checkable
class HasInfluence(Protocol):
    """A defense may say how far the model follows each client."""

    def influence(self, params: Vector) -> Mapping[ClientId, float] | None:
        """Each known client's share in a step from `params`; None where this cannot be told."""


@runtime_checkable
class CountsOnRate(Protocol):
    """A defense that takes the server's learning rate into account says which one."""

    @property
    def server_lr(self) -> float | None:
        """The learning rate that it counts on; None if any will do."""


def norm(vector: Vector) -> float:
    """Euclidean length, accumulated in float64."""
    return math.sqrt(kernels.dot(vector, vector))


def dot(a: Vector, b: Vector) -> float:
    """Inner product, accumulated in float64."""
    return float(kernels.dot(a, b))


def distance(a: Vector, b: Vector) -> float:
    """Euclidean distance, in float64."""
    gap = a.astype(np.float64) - b
    return float(np.sqrt(gap @ gap))


def clip_to_norm(vector: Vector, limit: float) -> Vector:
    """The vector, shortened to length `limit` if it is longer."""
    length = norm(vector)
    return vector if length <= limit else (vector * np.float32(limit / length))


def staleness(update: Update, model: Model) -> int:
    """How many versions passed between the update's base model and the present one."""
    return model.version - update.base.version


Kept = TypeVar("Kept", bound=Array | ArrayInRows)


def scoped(prefix: str, state: Mapping[str, Kept]) -> dict[str, Kept]:
    """The state dictionary of a part, its keys marked `prefix.` inside that of the whole."""
    return {f"{prefix}.{key}": value for key, value in state.items()}


def unscoped(prefix: str, state: Mapping[str, Array]) -> StateDict:
    """The reverse of `scoped`: only the keys of that part, without the mark."""
    start = f"{prefix}."
    return {key.removeprefix(start): state[key] for key in state if key.startswith(start)}
