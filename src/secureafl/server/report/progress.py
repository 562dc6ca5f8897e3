"""What an operator sees while a federation runs, and at its end."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from secureafl.server.live.federation import Result, Status
from secureafl.text import one_line, visible
from secureafl.types import Reason

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


def verdict_table(result: Result, title: str, max_rows: int = 20) -> Table:
    """Per client: how often it was accepted, and why not; the least accepted ones, if there are many."""
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    for (client, reason), count in result.verdicts.items():
        reasons[client][reason] = count
    table = Table(title=title)
    for column in ("client", "arrivals", "accepted", "rejected because"):
        table.add_column(column, justify="right" if column in {"arrivals", "accepted"} else "left")
    if len(reasons) > max_rows:
        table.caption = f"and {len(reasons) - max_rows} more, accepted more often"
    for client, counts in sorted(reasons.items(), key=lambda item: _share_accepted(item[1]))[:max_rows]:
        rejected = ", ".join(f"{one_line(reason)} {count}" for reason, count in counts.items() if reason not in GOOD)
        share = f"{_share_accepted(counts):.0%}"
        table.add_row(Text(visible(client)), str(sum(counts.values())), share, Text(rejected))
    return table


def _share_accepted(counts: dict[str, int]) -> float:
    return sum(count for reason, count in counts.items() if reason in GOOD) / sum(counts.values())
