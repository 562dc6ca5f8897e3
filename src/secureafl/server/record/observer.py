"""Who hears of a run as it goes."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from secureafl.server.record.entries import Entry

Timed: TypeAlias = Literal["step", "journal", "snapshot"]
"""What takes time at the server: judging and moving, making an arrival durable, writing the whole state."""


class RunObserver(Protocol):
    """Hears of a run as it goes. It is quick and never raises."""

    def row(self, entry: Entry) -> None:
        """This was written to the journal."""

    def took(self, what: Timed, seconds: float) -> None:
        """This was done in so much time."""
