"""Runs that 0.1 wrote: no chain, updates inside the rows, snapshots in a table of their own, refused updates counted.

They are read as they are. A server that goes on with one first turns it into the present format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from secureafl.defenses import DEFENSES
from secureafl.errors import StoreError
from secureafl.server.record.entries import Event

READ_UPDATE = "SELECT payload, checksum FROM log WHERE number = ?"
READ_SNAPSHOTS = "SELECT version, number, sha256 FROM snapshots ORDER BY version DESC"
TABLES = ("log", "snapshots", "facts")
REASONS = {"opposes-the-crowd": "against-consensus"}
"""Reasons that were written in other words."""


def upgraded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of such a run, as the present format states them."""
    own = dict(facts.get("defense_settings", {}))
    seed = own.pop("sketch_seed", 0)
    if facts.get("defense") == "secureafl" and own.get("estimates", True):
        own.setdefault("aggregate", "median")  # the default of 0.1
    if (entry := DEFENSES.get(str(facts.get("defense")))) is not None:
        own = entry.settings(**own).model_dump(mode="json")  # 0.1 stated what was set, not what was in force
    return {**facts, "defense_settings": own, "seed": seed, "count_refused": True}


def rows(database: Any, suffix: str) -> Iterator[tuple[tuple[Any, ...], bytes | None]]:
    """What the present format's log would hold, without numbers, and each row's update. From renamed tables."""
    covered: dict[int, list[tuple[int, str]]] = {}
    for version, number, sha256 in database.execute(READ_SNAPSHOTS.replace("snapshots", f"snapshots{suffix}")):
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
