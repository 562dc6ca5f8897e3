"""A run's record in tables: of a simulated run as of a deployed one, finished or live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.figure import Figure

from secureafl.errors import SettingsError
from secureafl.lab.reports.record_plots import draw_record
from secureafl.server.record.address import Place, parse_place
from secureafl.server.record.entries import Event
from secureafl.server.review.audit import arrival, client_records, explain
from secureafl.server.review.notices import notices
from secureafl.server.review.opened import RecordedRun


class RunRecord:
    """What a server wrote down: who sent what, what became of it, and why."""

    def __init__(self, place: Place) -> None:
        self.place = place
        """Its folder, or its address in PostgreSQL."""
        with RecordedRun.open(place) as run:
            self.facts: Mapping[str, Any] = dict(run.facts)
            """The settings that were in force, the defense, versions."""

    def clients(self) -> pa.Table:
        """One row for each client, the least accepted first: how often it was accepted, its vote, and a notice if it
        looks honest and hardly counts.
        """
        with RecordedRun.open(self.place) as run:
            records = client_records(run)
            noticed = notices(records, self.facts)
        rows = [
            {
                "client": record.client,
                "arrivals": record.arrivals,
                "accepted": record.accepted,
                "share_accepted": record.share_accepted,
                "over_budget": record.num_over_budget,
                "vote": record.vote,
                "influence": record.influence,
                "reasons": ", ".join(f"{count} {what}" for what, count in record.happened().most_common()),
                "notice": noticed.get(record.client),
            }
            for record in records
        ]
        return pa.Table.from_pylist(rows)

    def arrivals(self) -> pa.Table:
        """One row for each arrival: update, seconds, client, base, accepted, reason, and the numbers behind it."""
        with RecordedRun.open(self.place) as run:
            entries = list(run.journal.entries(Event.ARRIVAL))
        numbers = dict.fromkeys(name for entry in entries for name in entry.evidence)
        columns = {
            "update": pa.array([entry.version for entry in entries], pa.int64()),
            "seconds": pa.array([entry.seconds for entry in entries], pa.float64()),
            "client": pa.array([entry.client for entry in entries], pa.string()),
            "base": pa.array([entry.base for entry in entries], pa.int64()),
            "accepted": pa.array([bool(entry.accepted) for entry in entries], pa.bool_()),
            "reason": pa.array([str(entry.reason) for entry in entries], pa.string()),
        }
        columns |= {name: pa.array([entry.evidence.get(name) for entry in entries], pa.float64()) for name in numbers}
        return pa.table(columns)

    def explain(self, update: int) -> str:
        """One arrival's verdict in plain words."""
        with RecordedRun.open(self.place) as run:
            found = arrival(run, update)
        if found is None:
            raise SettingsError(f"{self.place} has no arrival {update}")
        return "\n".join(explain(found))

    def plot(self) -> Figure:
        """What arrivals were judged by, against the threshold, and how often each client was accepted."""
        return draw_record(self.arrivals(), self.clients())

    def __repr__(self) -> str:
        return f"<RunRecord {self.place}: {self.facts.get('defense')}>"


def open_record(place: Path | str) -> RunRecord:
    """The record of a run: its folder, or its address in PostgreSQL, `postgresql://…`."""
    return RunRecord(parse_place(place))
