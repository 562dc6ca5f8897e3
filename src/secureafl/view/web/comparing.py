"""What the pages about several runs ask for, as plain values ready for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from secureafl.errors import SecureAFLError, SettingsError
from secureafl.server.record.run import in_todays_names
from secureafl.server.review.notices import notices
from secureafl.settings import flattened
from secureafl.text import one_line, visible
from secureafl.view.arrivals import Integers
from secureafl.view.charts import MAX_INTERVALS, Along, intervals
from secureafl.view.overview import overview
from secureafl.view.reader import RunReader
from secureafl.view.run_folder import RunFolder
from secureafl.view.web.queries import Plain, listed, named, paged, tick, told

MAX_OVERLAID = 6
"""Runs whose curves are told apart in one chart."""
NUM_CLIENTS = 50
FOLLOWING = frozenset({"memory"})
"""Facts that follow from others."""

Only = Literal["all", "differ"]


def runs(folder: RunFolder) -> Plain:
    """Every run of the folder in a row."""
    return {"folder": str(folder.folder), "rows": [_row(folder, key) for key in folder.found()]}


def _row(folder: RunFolder, key: str) -> Plain:
    found = folder.read(key)
    row: Plain = {"key": key, "name": visible(folder.name(key)), "error": None}
    if not isinstance(found, RunReader):
        return {**row, "error": one_line(str(found)) if found is not None else "It is gone."}
    with found.lock:
        now = overview(found)
        total = now.accepted + now.rejected
        return {
            **row,
            "defense": now.defense,
            "state": now.state,
            "updates": total,
            "share_accepted": now.accepted / total if total else None,
            "rejected": now.rejected,
            "reason": next(iter(now.rejections), ""),
            "clients": now.num_clients,
            "notices": len(notices(found.records.values(), found.facts)),
            "seconds": now.seconds,
        }


def overlay(folder: RunFolder, keys: list[str], along: Along) -> Plain:
    """The curves of several runs, each over its own time or its own updates."""
    if len(keys) > MAX_OVERLAID:
        raise SettingsError(f"{len(keys)} runs are too many for one chart: choose at most {MAX_OVERLAID}")
    curves = []
    for key in keys:
        reader = require(folder, key)
        with reader.lock:
            spans = intervals(reader.arrivals.table, along, MAX_INTERVALS // 2)
        arrived = spans.accepted + spans.rejected
        share = [kept / all_ if all_ else math.nan for kept, all_ in zip(spans.accepted, arrived, strict=True)]
        curves.append(
            {
                "key": key,
                "name": visible(folder.name(key)),
                "middle": listed(spans.middle),
                "share": [None if math.isnan(value) else round(value, 4) for value in share],
                "staleness": listed(spans.staleness),
                "rate": listed(spans.rate),
                "rejected": listed(spans.rejected.cumsum()),
            }
        )
    return {"along": along, "runs": curves}


def versus(folder: RunFolder, a: str, b: str, *, only: Only, page: int) -> Plain:
    """Two runs side by side: settings that differ, clients, and what became of each update in both.

    Beside a client's first update in one run stands its first in the other, and so on.
    """
    left, right = require(folder, a), require(folder, b)
    with left.lock, right.lock:
        pairs = list(_pairs(left, right))
        counts = Counter(_kind(left, right, pair) for pair in pairs)
        shown = [pair for pair in pairs if only == "all" or _kind(left, right, pair) in ("only_a", "only_b")]
        part = paged(shown, page)
        part["rows"] = [{"a": _verdict(left, i), "b": _verdict(right, j)} for i, j in part["rows"]]
        return {
            "a": {**tick(left), "key": a, "name": visible(folder.name(a))},
            "b": {**tick(right), "key": b, "name": visible(folder.name(b))},
            "settings": _differing(left.facts, right.facts),
            "counts": {kind: counts[kind] for kind in ("both", "neither", "only_a", "only_b", "alone_a", "alone_b")},
            "clients": _clients(left, right),
            "verdicts": part,
        }


Pair = tuple[int | None, int | None]
"""Places of one update in the tables of both runs; None where a run has no such update."""


def _pairs(left: RunReader, right: RunReader) -> Iterator[Pair]:
    places = {name: right.arrivals.of(name) for name in right.records}
    met: Counter[str] = Counter()
    for i, place in enumerate(left.arrivals.table.client.tolist()):
        name = left.arrivals.clients[place]
        theirs: Integers | tuple[()] = places.get(name, ())
        yield i, int(theirs[met[name]]) if met[name] < len(theirs) else None
        met[name] += 1
    for name, theirs in places.items():
        yield from ((None, int(j)) for j in theirs[met[name] :])


def _kind(left: RunReader, right: RunReader, pair: Pair) -> str:
    i, j = pair
    if j is None:
        return "alone_a"
    if i is None:
        return "alone_b"
    in_a, in_b = bool(left.arrivals.table.accepted[i]), bool(right.arrivals.table.accepted[j])
    return ("both" if in_b else "only_a") if in_a else ("only_b" if in_b else "neither")


def _verdict(reader: RunReader, place: int | None) -> Plain | None:
    if place is None:
        return None
    table, arrivals = reader.arrivals.table, reader.arrivals
    client = arrivals.clients[table.client[place]]
    found = {
        "client": client,
        "label": visible(client),
        "update": int(table.version[place]),
        "accepted": bool(table.accepted[place]),
        "reason": one_line(arrivals.reasons[table.reason[place]]),
        "judged": told(table.judged[place]),
    }
    return dict(named(found, reader.names))


def _clients(left: RunReader, right: RunReader) -> list[Plain]:
    """Clients of either run, those first whose share of accepted updates differs most."""
    rows: list[Plain] = []
    for name in dict.fromkeys([*left.records, *right.records]):
        sides = [reader.records.get(name) for reader in (left, right)]
        shares = [side.share_accepted if side is not None and side.arrivals else None for side in sides]
        votes = [side.vote if side is not None else None for side in sides]
        gap = shares[1] - shares[0] if shares[0] is not None and shares[1] is not None else None
        row = {
            "client": name,
            "label": visible(name),
            "accepted": shares,
            "votes": votes,
            "updates": [side.arrivals if side is not None else 0 for side in sides],
            "gap": gap,
        }
        rows.append(named(row, right.names if left.names.get(name) is None else left.names))
    rows.sort(key=lambda row: (-abs(row["gap"] or 0.0), str(row["client"])))
    return rows[:NUM_CLIENTS]


def _differing(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Plain]:
    """Facts that are not the same in both runs, those of the defense with a dot; but not what follows from others, nor
    settings that only one of two defenses has."""
    a, b = (
        dict(flattened({name: value for name, value in in_todays_names(facts).items() if name not in FOLLOWING}))
        for facts in (left, right)
    )
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    if a.get("defense") != b.get("defense"):
        names = [name for name in names if (name in a and name in b) or not name.startswith("defense_settings.")]
    return [{"name": name, "a": _text(a.get(name)), "b": _text(b.get(name))} for name in names]


def _text(value: object) -> str:
    return "" if value is None else one_line(str(value))


def require(folder: RunFolder, key: str) -> RunReader:
    """What reads this run; an error says what stands in the way."""
    found = folder.read(key)
    if found is None:
        raise SettingsError(f"there is no run {key[:80]!r} in {folder.folder}")
    if isinstance(found, SecureAFLError):
        raise found
    return found
