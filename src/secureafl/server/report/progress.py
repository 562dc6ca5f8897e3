"""What an operator sees while a federation runs, and at its end."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from secureafl.fitted import FittedTable
from secureafl.server.live.federation import Result, Status
from secureafl.server.record.address import Place
from secureafl.server.record.names import ClientNames
from secureafl.text import one_line
from secureafl.types import UNJUDGED, Reason

NUM_CLOSING = 5

GOOD = {Reason.ACCEPTED, Reason.FIRST_CONTACT, Reason.BUFFERED, Reason.OVER_BUDGET}


class Progress:
    """Prints one line per report: engines log to files and pipes, where a moving bar would be noise."""

    def __init__(
        self, console: Console, label: str, num_updates: int | None = None, *, waiting: str = "clients"
    ) -> None:
        self._console = console
        self._waiting = waiting
        self._label = label
        self._goal = f"/{num_updates}" if num_updates is not None else ""

    def __call__(self, status: Status) -> None:
        if status.num_clients == 0:
            line = f"[bold]{escape(self._label)}[/]  waiting for {escape(self._waiting)}"
            self._console.print(line, highlight=False, soft_wrap=True)
            return
        parts = [
            f"[bold]{self._label}[/]",
            f"updates {status.version}{self._goal}",
            f"accepted [green]{status.accepted}[/] rejected [red]{status.rejected}[/]",
            f"staleness {status.staleness:.1f}",
            f"{status.rate:.1f} updates/s",
            f"{status.num_clients} clients",
        ]
        if status.latest is not None:
            metrics = ", ".join(f"{escape(name)} {value:.3f}" for name, value in status.latest.metrics.items())
            parts.append(f"{metrics} (version {status.latest.version})")
        self._console.print("  ".join(parts), soft_wrap=True, highlight=False)


def closing_table(
    result: Result,
    defense: str,
    *,
    place: Place | None = None,
    names: ClientNames = ClientNames(),
    max_rows: int = NUM_CLOSING,
) -> FittedTable:
    """What an operator wants to know at the end: how it went, and who was accepted least.

    `place` is where the run is kept, for the line that says how to see more.
    """
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    for (client, reason), count in result.verdicts.items():
        reasons[client][reason] = count
    caption = []
    if len(reasons) > max_rows:
        caption.append(f"{len(reasons) - max_rows} more clients were accepted more often.")
    if place is not None:
        caption.append(f"All of it: secureafl audit {place}")
    table = FittedTable(title=_headline(result, defense), caption=" ".join(caption))
    table.add_column("least accepted clients")
    for column in ("updates", "accepted"):
        table.add_column(column, justify="right")
    table.add_column("why not", rank=1)
    for client, counts in sorted(reasons.items(), key=lambda item: _share_accepted(item[1]))[:max_rows]:
        rejected = "\n".join(f"{count} {one_line(reason)}" for reason, count in counts.items() if reason not in GOOD)
        share = f"{_share_accepted(counts):.0%}"
        table.add_row(Text(names.shown(client)), str(sum(counts.values())), share, Text(rejected))
    return table


def _headline(result: Result, defense: str) -> str:
    """How many updates, in what time, how many of them rejected, and what the evaluation came to."""
    judged = sum(count for (_, reason), count in result.verdicts.items() if reason not in UNJUDGED)
    rejected = sum(count for (_, reason), count in result.verdicts.items() if reason not in GOOD)
    parts = [f"{defense}: {result.version} updates in {result.seconds:.0f} s"]
    parts.append(
        f"{rejected} rejected" if judged == result.version else f"{judged} since the restart, {rejected} rejected"
    )
    if result.evaluations:
        parts += [f"{name} {value:.3f}" for name, value in result.evaluations[-1].metrics.items()]
    return ", ".join(parts)


def _share_accepted(counts: dict[str, int]) -> float:
    return sum(count for reason, count in counts.items() if reason in GOOD) / sum(counts.values())
