"""What the pages ask for, as plain values ready for JSON. Pages set text as text: none of it becomes markup."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from secureafl.server.record.entries import Entry
from secureafl.server.record.names import ClientNames
from secureafl.server.review.audit import EVIDENCE, ClientRecord, explain
from secureafl.server.review.notices import ADVICE, notices, of_newcomers, said_of
from secureafl.text import one_line, visible
from secureafl.view.arrivals import Table
from secureafl.view.charts import MAX_INTERVALS, MAX_POINTS, Along, Points, intervals, points, thinning
from secureafl.view.overview import overview, worst_clients
from secureafl.view.reader import RunReader

Plain = dict[str, Any]

NUM_WORST = 8
NUM_EVENTS = 12
NUM_NOTICES = 8
PAGE = 50
DIGITS = 5

SORTS: dict[str, Callable[[ClientRecord], Any]] = {
    "client": lambda record: record.client,
    "arrivals": lambda record: record.arrivals,
    "accepted": lambda record: record.share_accepted if record.arrivals else None,
    "vote": lambda record: record.vote,
    "steps": lambda record: record.steps_left,
    "rejected": lambda record: record.arrivals - record.accepted,
    "staleness": lambda record: record.mean_staleness,
    "factor": lambda record: record.usual_factor,
    "seen": lambda record: record.last_seen,
}


def tick(reader: RunReader) -> Plain:
    """The figures on top of every page."""
    return dataclasses.asdict(overview(reader))


def summary(reader: RunReader) -> Plain:
    """What the overview lists below its charts."""
    with reader.lock:
        events = [_event(entry) for entry in reversed(reader.events)][:NUM_EVENTS]
        noticed = notices(reader.records.values(), reader.facts)
        return {
            "tick": tick(reader),
            "worst": [_client(record) for record in worst_clients(reader, NUM_WORST)],
            "events": events,
            "notices": [{**_name(client), "why": why} for client, why in noticed.items()][:NUM_NOTICES],
            "num_notices": len(noticed),
            "advice": ADVICE,
            "newcomers": of_newcomers(reader.records.values(), reader.facts),
        }


def charts(reader: RunReader, along: Along) -> Plain:
    """What the overview draws, along time or along the count of arrivals."""
    with reader.lock:
        table = reader.arrivals.table
        spans = intervals(table, along, MAX_INTERVALS if along == "time" else MAX_INTERVALS // 2)
        return {
            "along": along,
            "width": spans.width,
            "middle": listed(spans.middle),
            "accepted": listed(spans.accepted),
            "rejected": listed(spans.rejected),
            "rate": listed(spans.rate),
            "staleness": listed(spans.staleness),
            "max_staleness": listed(spans.max_staleness),
            "points": _points(points(table)),
        }


def clients(reader: RunReader, *, sort: str, descending: bool, contains: str, only_rejected: bool, page: int) -> Plain:
    """One page of the clients' table."""
    with reader.lock:
        asked = (sort, descending, contains, only_rejected)
        part = paged(reader.listed(asked, lambda: _found(reader, *asked)), page)
        rows = [{**_client(record), **_standing(record, reader.facts)} for record in part["rows"]]
        everyone = reader.records.values()
        return {
            **part,
            "rows": rows,
            "total": len(reader.records),
            "has_votes": any(record.vote is not None for record in everyone),
            "has_steps": any(record.steps_left is not None for record in everyone),
        }


def _found(reader: RunReader, sort: str, descending: bool, contains: str, only_rejected: bool) -> list[ClientRecord]:
    """Those that the table has, in the order asked for."""
    found, wanted, names = reader.by_name(), contains.lower(), reader.names
    if wanted:
        found = [record for record in found if names.contain(record.client, wanted)]
    if only_rejected:
        found = [record for record in found if record.rejected]
    return _ordered(found, sort, descending=descending)


def _ordered(records: list[ClientRecord], sort: str, *, descending: bool) -> list[ClientRecord]:
    """Records that are in the order of their names, in the order asked for. Those without the figure come last."""
    if sort == "client":
        return records[::-1] if descending else records
    keys = np.array([SORTS[sort](record) for record in records], np.float64)  # NaN for None
    order = np.argsort(-keys if descending else keys, kind="stable")
    return [records[place] for place in order.tolist()]


def client(reader: RunReader, name: str, *, only_rejected: bool, page: int) -> Plain | None:
    """One client with a page of its verdicts, the newest first."""
    with reader.lock:
        record = reader.records.get(name)
        if record is None:
            return None
        table, arrivals = reader.arrivals.table, reader.arrivals
        places = arrivals.of(name)
        shown = places[~table.accepted[places]] if only_rejected else places
        part = paged(shown[::-1].tolist(), page)
        part["rows"] = [
            {
                "update": int(table.version[place]),
                "seconds": float(table.seconds[place]),
                "accepted": bool(table.accepted[place]),
                "reason": one_line(arrivals.reasons[table.reason[place]]),
                "judged": told(table.judged[place]),
                "threshold": told(table.threshold[place]),
                "staleness": told(table.staleness[place]),
            }
            for place in part["rows"]
        ]
        events = [_event(entry) for entry in reversed(reader.events) if entry.client == name][:NUM_EVENTS]
        return {
            "client": _client(record),
            **_standing(record, reader.facts),
            "advice": ADVICE,
            "verdicts": part,
            "events": events,
            "points": _points(points(table, places)),
            "weights": _weights(table, places),
            "measure": overview(reader).measure_label,
        }


def verdict(reader: RunReader, update: int) -> Plain | None:
    """One arrival in words, with the numbers behind it."""
    entry = reader.arrival(update)
    if entry is None:
        return None
    with reader.lock:
        table = reader.arrivals.table
        own = table.version[reader.arrivals.of(entry.client)]
        place = int(own.searchsorted(update))
        return {
            "update": update,
            **_name(entry.client),
            "accepted": bool(entry.accepted),
            "reason": one_line(entry.reason),
            "words": explain(entry, reader.names),
            "evidence": [
                {"name": name, "value": told(value), "meaning": EVIDENCE.get(name, "")}
                for name, value in entry.evidence.items()
            ],
            "judged_by": table.measure if "threshold" in entry.evidence else None,
            "previous": int(own[place - 1]) if place > 0 else None,
            "next": int(own[place + 1]) if place + 1 < len(own) else None,
        }


def listed(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Numbers for JSON, as exact as a chart needs them; None for what is not finite."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]


def told(value: float) -> float | str | None:
    """One number for JSON, which knows no infinity."""
    value = float(value)
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def _points(drawn: Points) -> Plain:
    return {
        "update": drawn.version.tolist(),
        "seconds": listed(drawn.seconds),
        "accepted": listed(drawn.accepted),
        "rejected": listed(drawn.rejected),
        "threshold": listed(drawn.threshold),
        "every": drawn.every,
        "not_finite": drawn.not_finite,
        "unmeasured": drawn.unmeasured,
        "logarithmic": drawn.logarithmic,
    }


def _client(record: ClientRecord) -> Plain:
    figures = record.summary()
    return {
        **_name(record.client),
        "arrivals": record.arrivals,
        "accepted": record.accepted,
        "share_accepted": record.share_accepted if record.arrivals else None,
        "num_rejected": sum(record.rejected.values()),
        "rejected": _counted(record.rejected),
        "over_budget": record.num_over_budget,
        "vote": record.vote,
        "steps_left": record.steps_left,
        "alike": record.alike,
        "epsilon": record.epsilon,
        "delta": record.delta,
        "happened": _counted(record.happened()),
        "staleness": figures["staleness"],
        "factor": figures["lipschitz factor 50%"],
        "factor_low": figures["lipschitz factor 10%"],
        "factor_high": figures["lipschitz factor 90%"],
        "last_seen": record.last_seen,
    }


def _standing(record: ClientRecord, facts: Mapping[str, Any]) -> Plain:
    """What the operator's settings say of a client, and what the operator should know of it."""
    return {"said": said_of(record.client, facts), "notice": notices([record], facts).get(record.client)}


def _weights(table: Table, places: npt.NDArray[np.int64]) -> Plain | None:
    """What a client's vote weighed at its updates, and its budget of steps; None if the defense says neither."""
    chosen = places[:: thinning(len(places), MAX_POINTS)]
    vote, steps = table.vote[chosen], table.steps_left[chosen]
    if not np.isfinite(vote).any() and not np.isfinite(steps).any():
        return None
    return {"update": table.version[chosen].tolist(), "vote": listed(vote), "steps_left": listed(steps)}


def _event(entry: Entry) -> Plain:
    reason = one_line(entry.reason)
    return {"seconds": entry.seconds, **_name(entry.client), "event": entry.event, "reason": reason}


def _name(client: str) -> Plain:
    """The client's name, for links, and the same to be shown."""
    return {"client": client, "label": visible(client)}


def named(found: Any, names: ClientNames) -> Any:
    """An answer in which clients are labelled as the operator calls them."""
    if isinstance(found, dict):
        answer = {key: named(value, names) for key, value in found.items()}
        if "label" in found and names.get(found["client"]) is not None:
            answer |= {"label": names.shown(found["client"]), "id": found["label"]}
        return answer
    return [named(value, names) for value in found] if isinstance(found, list) else found


def _counted(counts: Counter[str]) -> dict[str, int]:
    return {one_line(what): count for what, count in counts.most_common()}


def paged(rows: Iterable[Any], page: int) -> Plain:
    """One page of these rows, and how many there are."""
    everything = list(rows)
    num_pages = max(1, math.ceil(len(everything) / PAGE))
    page = min(max(1, page), num_pages)
    return {
        "rows": everything[(page - 1) * PAGE : page * PAGE],
        "page": page,
        "num_pages": num_pages,
        "found": len(everything),
    }
