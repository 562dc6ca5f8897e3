"""A run on record, finished or live, opened to be read: audited, replayed, or repaired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from secureafl.defenses import Reference, Scorer, build_defense
from secureafl.errors import StoreError
from secureafl.server.machine import Machine, MachineSettings
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.journal import Journal
from secureafl.server.record.run import model_hash
from secureafl.server.record.snapshots import Snapshots
from secureafl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """What a run says of itself."""

    place: Place
    journal: Journal
    facts: Mapping[str, Any]
    snapshots: Snapshots
    first: Vector

    @classmethod
    def open(cls, place: Place, *, whole: bool = True) -> RecordedRun:
        """The run that is kept there. Unless `whole`, its log is not checked from end to end first: rows are checked
        one by one as they are read.
        """
        store = store_of(place)
        journal = store.read()
        try:
            if whole:
                journal.check()
            facts, snapshots = journal.facts(), Snapshots(store.files)
            first = snapshots.read_first()
            if model_hash(first).hex() != facts.get("first model", model_hash(first).hex()):
                raise StoreError(f"{place}: the run's first model is damaged: its SHA-256 is not the one on record")
        except BaseException:
            journal.close()
            raise
        return cls(place, journal, facts, snapshots, first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()

    def require_updates(self, purpose: str) -> None:
        """Raise if an update is not on record any more, or never was: `purpose`, a command, repeats them all."""
        if self.journal.forgotten:
            why = f"rows 1 to {self.journal.forgotten} were forgotten (keep-rows, keep-seconds)"
        elif (entry := self.journal.first_without_update()) is None:
            return
        elif entry.sent is None:
            why = "it was recorded with journal = verdicts"
        else:
            why = f"that of row {entry.number} was forgotten (max-journal-bytes)"
        raise StoreError(
            f"{purpose} needs every update, and {self.place} does not hold them: {why}."
            " It can be audited and resumed; record with journal = full, and keep all, to use this command"
        )

    def machine(
        self,
        *,
        defense: str | None = None,
        changes: Mapping[str, Any] | None = None,
        reference: Reference | None = None,
        score: Scorer | None = None,
    ) -> Machine:
        """The machine as it stood before the first arrival, under the run's own defense or another.

        `changes` are settings of the defense; another defense starts from its own defaults.
        """
        name = defense or self.facts["defense"]
        own = self.facts["defense_settings"] if name == self.facts["defense"] else {}
        server_lr = self.facts["server_lr"]
        built = build_defense(
            name,
            len(self.first),
            {**own, **(changes or {})},
            server_lr=server_lr,
            seed=self.facts.get("seed", 0),
            reference=reference,
            score=score,
        )
        settings = MachineSettings(
            server_lr=server_lr,
            max_staleness=self.facts["max_staleness"],
            keep_recent=self.facts.get("keep_recent", 0),
            average_over=self.facts["average_over"],
            upstream=self.facts.get("upstream"),
            count_refused=self.facts.get("count_refused", False),
        )
        return Machine(built, self.first.copy(), settings)
