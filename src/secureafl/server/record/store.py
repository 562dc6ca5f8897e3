"""Where one run is kept, as everyone else sees it: a journal, files, and one server at a time that holds it.

Two kinds of it exist: `folder` and `postgres`. `address` has the dictionary of both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from secureafl.server.record.chain import Head
from secureafl.server.record.journal import Journal

SNAPSHOTS = "snapshots"
FIRST = f"{SNAPSHOTS}/first.safetensors"
MODEL = "model.safetensors"


class Files(Protocol):
    """The files of a run, by name: snapshots, the first and the last model. Errors are OSErrors."""

    def where(self, name: str) -> str:
        """The file, as messages name it."""

    def names(self, pattern: str) -> list[str]:
        """Names of the files that fit the pattern (`snapshots/0*`), sorted."""

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file, durably: the old whole or the new whole, whatever happens."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """The file where other libraries can open it. What they then have open outlasts the context."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class RunHold(Protocol):
    """A run that one server holds."""

    def require(self) -> None:
        """Raise `StoreError` if it is held no more."""

    def release(self) -> None:
        """Let another server have the run; a second time does nothing."""


@dataclass(frozen=True, slots=True)
class StandbyReport:
    """What a standby says of itself, so that `watch` and the dashboard can show it."""

    name: str
    """Its process and machine."""
    number: int
    """The newest row that it has repeated."""
    rows: int
    """How many it had yet to repeat."""
    seconds: float
    """How long ago it last had all of them; 0 if it has."""
    can_lead: bool
    """Whether it starts a server when the lease ends; otherwise it only follows and checks."""


class Store(Protocol):
    """One run's place. `str` of it is how messages name it."""

    @property
    def name(self) -> str:
        """The run's own name, in a word."""

    @property
    def files(self) -> Files:
        """Its files."""

    def hold(self) -> RunHold:
        """Take the run, for one server; `StoreError` says who has it. It need not have begun."""

    def is_held(self) -> bool:
        """Whether a server holds it now."""

    def has_run(self) -> bool:
        """Whether there is a run."""

    def require_run(self) -> None:
        """Raise `StoreError` if there is no run, with how to name one."""

    def clear(self) -> None:
        """Remove what a server left that died before its run began. `StoreError` if there is a run."""

    def create(self, facts: Mapping[str, object]) -> Journal:
        """The journal of a new run, for whoever holds it."""

    def open(self, *, accept_loss: bool = False, known: Head | None = None) -> Journal:
        """The journal of an earlier server, to be gone on with by whoever holds it; `known` is a row up to which the
        caller has followed it already.
        """

    def read(self) -> Journal:
        """The journal of a run that may be live, to be read only."""

    def identity(self) -> Hashable:
        """Another one once another run has taken this place."""

    def written_at(self) -> float:
        """When the run last wrote anything, in seconds since 1970."""

    def standbys(self) -> list[StandbyReport]:
        """The standbys that follow the run now."""
