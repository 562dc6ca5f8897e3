"""Runs that 0.1 wrote: no chain, updates inside the rows, snapshots in a table of their own, refused updates counted.

They are read as they are. A server that goes on with one first turns it into the present format.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from secureafl.defenses import DEFENSES
from secureafl.errors import SettingsError, StoreError
from secureafl.server.record.chain import Head, row_hash
from secureafl.server.record.entries import Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.log_tables import SAID, Row
from secureafl.text import one_line

TABLES = ("log", "snapshots", "facts")
_SNAPSHOTS = "SELECT version, number, sha256 FROM snapshots{} ORDER BY version DESC"


class OldJournal(Journal):
    """Such a run's journal, to be read. There is no chain to check: a damaged page and a damaged update are found."""

    _rows_query = f"SELECT {SAID}, NULL, model, NULL, NULL FROM log"
    _without_update = "payload IS NULL"

    def facts(self) -> dict[str, Any]:
        return upgraded(super().facts())

    def snapshots(self) -> list[tuple[int, int, str]]:
        return [(version, number, sha256) for version, number, sha256 in self._fetch(_SNAPSHOTS.format(""))]

    def check(self) -> None:
        said = self._value("PRAGMA quick_check")
        if said != "ok":
            raise StoreError(f"the run's database {self.where} is damaged: {one_line(str(said))}")

    def _check_format(self) -> None:
        """It is known."""

    def _check_row(self, row: Row, before: bytes | None = None, number: int | None = None) -> None:
        """A row says nothing of itself."""

    def _update(self, row: Row) -> bytes | None:
        update, checksum = self._fetch("SELECT payload, checksum FROM log WHERE number = ?", [row[0]])[0]
        if update is None:
            return None
        return self._whole(update, row[0], lambda update: zlib.crc32(update) == checksum)


def upgraded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of such a run, as the present format states them: 0.1 stated what was set, not what was in force."""
    own = dict(facts.get("defense_settings", {}))
    if facts.get("defense") == "secureafl" and own.get("estimates", True):
        own.setdefault("aggregate", "median")  # the default of 0.1
    if (entry := DEFENSES.get(str(facts.get("defense")))) is not None:
        with contextlib.suppress(SettingsError):  # such settings are shown; who would judge by them is told why not
            own = entry.settings.recorded(own).model_dump(mode="json")
    return {**facts, "defense_settings": own, "seed": 0, "count_refused": True}


def chained(database: Any, suffix: str, head: Head) -> Iterator[tuple[Row, bytes | None]]:
    """The rows of the present format's log, as a chain behind this head, and each row's update. From renamed tables."""
    for (*said, model), update in _rows(database, suffix):
        sent = None if update is None else hashlib.sha256(update).digest()
        stored = (head.number + 1, *said, sent, model)
        before, head = head, Head(head.number + 1, row_hash(head.hash, stored))
        yield (*stored, before.hash, head.hash), update


def _rows(database: Any, suffix: str) -> Iterator[tuple[Row, bytes | None]]:
    covered: dict[int, list[tuple[int, str]]] = {}
    for version, number, sha256 in database.execute(_SNAPSHOTS.format(suffix)):
        covered.setdefault(number, []).append((version, sha256))
    last = 0
    while row := database.execute(
        "SELECT number, seconds, version, client, event, reason, accepted, evidence, ticket, base, model, payload,"
        f" checksum FROM log{suffix} WHERE number > ? ORDER BY number LIMIT 1",
        [last],
    ).fetchone():
        last, *said, model, update, checksum = row
        if update is not None and zlib.crc32(update) != checksum:
            raise StoreError(f"the update in row {last} is damaged (its checksum does not match)")
        yield (*said, model), update
        for version, sha256 in covered.get(last, ()):
            yield (said[0], version, "", str(Event.SNAPSHOT), sha256, None, "{}", None, None, None), None
