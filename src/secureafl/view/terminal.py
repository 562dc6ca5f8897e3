"""`secureafl watch`: a run in the terminal, while it runs or afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from secureafl.fitted import FittedTable
from secureafl.server.record.address import Place
from secureafl.server.record.store import StandbyReport
from secureafl.server.review.notices import ADVICE, notices, of_newcomers
from secureafl.text import one_line, visible
from secureafl.view.arrivals import Numbers
from secureafl.view.charts import intervals, points
from secureafl.view.overview import Overview, overview, worst_clients
from secureafl.view.reader import RunReader, State
from secureafl.view.words import MISSING, duration, number

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 48
NUM_WORST = 8
NUM_LATEST = 5
FULL_HEIGHT = 31
FRAME_HEIGHT = 17  # everything but the rows of clients, without the newest rejections
COLOURS = {State.LIVE: "green", State.IDLE: "yellow", State.STOPPED: "yellow", State.FINISHED: "blue"}


def watch(
    place: Place,
    console: Console,
    *,
    once: bool = False,
    seconds: float = 1.0,
    names: Path | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Draw the run every so many seconds until it is over or the user has seen enough; with `once`, draw it once."""
    reader = RunReader(place, names=names)
    if once:
        console.print(picture(reader, expand=console.is_terminal))
        return
    with Live(picture(reader, console.height), console=console, auto_refresh=False) as live:
        try:
            while not reader.state.over:
                sleep(seconds)
                reader.refresh()
                live.update(picture(reader, console.height), refresh=True)
        except KeyboardInterrupt:
            return


def picture(reader: RunReader, height: int = FULL_HEIGHT, *, expand: bool = True) -> RenderableType:
    """The run as it stands, in about so many lines; with `expand`, as wide as the terminal."""
    with reader.lock:
        now = overview(reader)
        if now.version == 0:
            waiting = "No update has arrived yet."
            if now.memory is not None:
                waiting += f"\nMemory for clients: {now.memory}."
            return Panel(Text(waiting), title=_title(now), title_align="left", expand=expand)
        parts: list[RenderableType] = [_figures(now), Text(), _curves(reader, now)]
        if now.rejected:
            parts += [Text(), _worst(reader, min(NUM_WORST, max(3, height - FRAME_HEIGHT)))]
        if now.rejected and height >= FULL_HEIGHT:
            parts += [Text(), _latest(reader)]
        parts += [part for text in _notices(reader) for part in (Text(), text)]
        return Panel(
            Group(*parts),
            title=_title(now),
            title_align="left",
            subtitle=_advice(now),
            subtitle_align="left",
            expand=expand,
        )


def _title(now: Overview) -> Text:
    title = Text.assemble(f" {visible(now.run)} ", (f" {now.state} ", f"reverse {COLOURS[now.state]}"))
    return title.append(f" {visible(now.defense)}, {duration(now.seconds)} ")


def _advice(now: Overview) -> Text | None:
    if now.state is State.IDLE:
        return Text(f" nothing was written for {duration(now.quiet_seconds)}: slow clients, or a server that died ")
    if now.state is State.STOPPED:
        return Text(" nobody writes to this run; it can be resumed ")
    return None


def _figures(now: Overview) -> Table:
    grid = Table.grid(padding=(0, 3))
    share = now.accepted / now.version
    grid.add_row("model version", _strong(f"{now.version:,}"), "accepted", _strong(f"{now.accepted:,} ({share:.0%})"))
    grid.add_row("updates/s", _strong(number(now.rate)), "rejected", _strong(f"{now.rejected:,} ({1 - share:.0%})"))
    worst = f"{number(now.staleness)}, at most {number(now.max_staleness)}"
    grid.add_row("clients", _strong(f"{now.num_clients:,}"), "staleness", _strong(worst))
    judged = _strong(number(now.typical))
    judged.append(f" against {number(now.threshold)}" if now.threshold is not None else "")
    grid.add_row(now.measure_label, judged, *_troubles(now))
    for standby in now.standbys:
        grid.add_row("standby", Text(visible(standby.name)), "behind by", _behind(standby))
    if now.memory is not None:
        grid.add_row("memory for clients", _strong(now.memory))
    return grid


def _behind(standby: StandbyReport) -> Text:
    said = _strong(f"{standby.rows:,} rows")
    if standby.rows:
        said.append(f", {duration(standby.seconds)}")
    return said if standby.can_lead else said.append(" (checks only: it starts no server)")


def _troubles(now: Overview) -> tuple[str, Text]:
    if not now.troubles:
        return "", Text()
    return "what else", Text(", ".join(f"{count:,} {event}" for event, count in now.troubles.items()))


def _curves(reader: RunReader, now: Overview) -> Table:
    spans, dots = intervals(reader.arrivals.table, max_intervals=WIDTH), points(reader.arrivals.table, max_points=10**9)
    grid = Table.grid(padding=(0, 2))
    rows = [
        ("accepted", spans.accepted, "blue"),
        ("rejected", spans.rejected, "red"),
        ("staleness", spans.staleness, "cyan"),
        ("threshold", _by_span(dots.seconds, dots.threshold, spans.width, len(spans.middle)), "default"),
    ]
    for label, values, colour in rows:
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        largest = f"at most {number(float(known.max()))}"
        grid.add_row(label, Text(sparkline(values), style=colour), Text(largest, style="dim"))
    grid.add_row("", Text(f"one bar is {number(spans.width)} s, from 0 to {duration(now.seconds)}", style="dim"))
    return grid


def _worst(reader: RunReader, limit: int) -> FittedTable:
    shown, known = worst_clients(reader, limit), len(reader.records)
    title = f"Least accepted ({len(shown)} of {known:,} clients)" if len(shown) < known else "Least accepted"
    table = FittedTable(title=title, box=None, pad_edge=False, header_style="bold underline")
    table.add_column("client")
    for column, rank in (("updates", 0), ("accepted", 0), ("stale", 3), ("factor", 4)):
        table.add_column(column, rank=rank, justify="right")
    table.add_column("why not, and what else", rank=2)
    table.add_column("", rank=1)
    for record in shown:
        summary = record.summary()
        why = [f"{count} {what}" for what, count in record.happened().most_common()]
        table.add_row(
            Text(reader.names.shown(record.client)),
            f"{record.arrivals:,}",
            f"{record.share_accepted:.0%}",
            number(_figure(summary["staleness"]), 2),
            number(_figure(summary["lipschitz factor 50%"])),
            Text(one_line(why[0])),
            Text(one_line(", ".join(why[1:]))),
        )
    return table


def _notices(reader: RunReader) -> list[Text]:
    """A line or two, so that the rest keeps its place; the audit has all."""
    found = [reader.names.shown(client) for client in notices(reader.records.values(), reader.facts)]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    said = [f"{client}{more}: {ADVICE}" for client in found[:1]]
    if newcomers := of_newcomers(reader.records.values(), reader.facts):
        said.append(newcomers)
    return [Text(text, style="yellow") for text in said]


def _latest(reader: RunReader) -> FittedTable:
    table = FittedTable(
        title="Newest rejections",
        box=None,
        pad_edge=False,
        show_header=False,
        caption="One in plain words: secureafl audit RUN --update N",
    )
    for rank in (2, 0, 0, 0, 1):
        table.add_column("", rank=rank)
    columns, arrivals = reader.arrivals.table, reader.arrivals
    for place in np.flatnonzero(~columns.accepted)[: -NUM_LATEST - 1 : -1].tolist():
        judged, threshold = float(columns.judged[place]), float(columns.threshold[place])
        against = f"{number(judged)} against {number(threshold)}" if threshold == threshold else MISSING
        table.add_row(
            f"{columns.seconds[place]:,.1f} s",
            f"arrival {columns.version[place]}",
            Text(reader.names.shown(arrivals.clients[columns.client[place]])),
            Text(one_line(arrivals.reasons[columns.reason[place]])),
            against,
        )
    return table


def sparkline(values: Numbers) -> str:
    """Bars from nought to the largest value; a blank where nothing is known."""
    largest = max((value for value in values.tolist() if np.isfinite(value)), default=0.0)
    places = [0 if not np.isfinite(value) or largest <= 0 else value / largest * (len(BARS) - 1) for value in values]
    return "".join(BARS[int(np.ceil(max(0.0, place)))] for place in places)


def _by_span(seconds: Numbers, values: Numbers, width: float, count: int) -> Numbers:
    """The last finite value within each span."""
    found = np.full(count, np.nan)
    known = np.isfinite(values)
    found[(seconds[known] / width).astype(np.int64)] = values[known]
    return found


def _figure(value: object) -> float | None:
    return value if isinstance(value, float) else None


def _strong(text: str) -> Text:
    return Text(text, style="bold")
