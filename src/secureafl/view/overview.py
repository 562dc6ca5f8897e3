"""A run at a glance: the same figures for the terminal and the browser."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from secureafl.defenses.base import ClientMemory
from secureafl.server.record.store import StandbyReport
from secureafl.server.review.audit import ClientRecord, least_accepted
from secureafl.text import in_bytes
from secureafl.view.arrivals import MEASURES, Numbers
from secureafl.view.reader import RunReader, State

RECENT = 100
"""Arrivals that rate, staleness and the typical measure look back on."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Where a run stands."""

    run: str
    defense: str
    state: State
    seconds: float
    """Time on the run's own clock."""
    quiet_seconds: float
    number: int
    """Rows of the journal read so far."""
    version: int
    """The model's: arrivals so far."""
    accepted: int
    rejected: int
    num_clients: int
    rate: float | None
    """Arrivals per second, over the recent ones."""
    mean_rate: float | None
    """The same over the whole run."""
    staleness: float | None
    max_staleness: float | None
    measure: str
    measure_label: str
    typical: float | None
    """The measure of recent arrivals, at the median."""
    threshold: float | None
    """What the newest arrival was held against."""
    rejections: dict[str, int]
    """Reason -> how often, the most frequent first."""
    troubles: dict[str, int]
    standbys: list[StandbyReport]
    """Servers that follow the run, and are ready to take over."""
    memory: str | None
    """What these clients take at the server, at most; before there are any, what each will take."""


def overview(reader: RunReader) -> Overview:
    """Where the run stands now."""
    with reader.lock:
        table = reader.arrivals.table
        recent = slice(max(0, len(table) - RECENT), None)
        staleness = _finite(table.staleness[recent])
        judged, thresholds = _finite(table.judged[recent]), _finite(table.threshold[recent])
        accepted = int(table.accepted.sum())
        return Overview(
            run=str(reader.place),
            defense=str(reader.facts.get("defense", "?")),
            state=reader.state,
            seconds=reader.seconds,
            quiet_seconds=reader.quiet_seconds,
            number=reader.last_number,
            version=int(table.version[-1]) + 1 if len(table) else 0,
            accepted=accepted,
            rejected=len(table) - accepted,
            num_clients=len(reader.records),
            rate=_rate(table.seconds[recent]),
            mean_rate=_rate(table.seconds),
            staleness=float(staleness.mean()) if len(staleness) else None,
            max_staleness=float(staleness.max()) if len(staleness) else None,
            measure=table.measure,
            measure_label=MEASURES[table.measure],
            typical=float(np.median(judged)) if len(judged) else None,
            threshold=float(thresholds[-1]) if len(thresholds) else None,
            rejections=dict(reader.rejections.most_common()),
            troubles=dict(reader.troubles.most_common()),
            standbys=list(reader.standbys),
            memory=_memory(reader),
        )


def _memory(reader: RunReader) -> str | None:
    said = reader.facts.get("memory")
    if not isinstance(said, dict):
        return None
    memory, num_clients = ClientMemory(**said), len(reader.records)
    if not num_clients:
        return str(memory)
    text = f"{in_bytes(memory.in_memory(num_clients))} at most"
    if elsewhere := memory.elsewhere(num_clients):
        text += f", {in_bytes(elsewhere)} in the {memory.rows_in}"
    return text


def worst_clients(reader: RunReader, limit: int) -> list[ClientRecord]:
    """The least accepted of those who were ever rejected."""
    with reader.lock:
        return least_accepted(record for record in reader.records.values() if record.rejected)[:limit]


def _finite(values: Numbers) -> Numbers:
    return values[np.isfinite(values)]


def _rate(seconds: Numbers) -> float | None:
    span = float(seconds[-1] - seconds[0]) if len(seconds) > 1 else 0.0
    return (len(seconds) - 1) / span if span > 0.0 and math.isfinite(span) else None
