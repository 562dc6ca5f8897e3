"""What one sees while cells run: a bar per running cell, and one for all, each with its time to go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.experiment import CellStatus

ETA_SECONDS = 120.0
"""Speed is estimated from the last so many seconds."""


def bars(console: Console) -> Progress:
    """The columns all bars share."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
        console=console,
        speed_estimate_period=ETA_SECONDS,
    )


def headline(metrics: Mapping[str, float]) -> str:
    """The metrics of a table's cell in a few characters."""
    shown = [f"{name.upper()} {metrics[name]:.3f}" for name in ("ter", "asr", "rmse") if name in metrics]
    return " ".join(part for part in shown if not part.endswith("nan"))


class CellProgress:
    """The bar of a single run."""

    def __init__(self, console: Console, label: str, rounds: int) -> None:
        self._rounds = rounds
        self._bars = bars(console)
        self._task = self._bars.add_task(label, total=rounds, note="")

    def __enter__(self) -> CellProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def advanced(self, key: str, status: CellStatus) -> None:
        """Take over how far the cell is."""
        self._bars.update(self._task, completed=status.done, note=headline(status.latest))

    def finished(self, key: str, failure: str | None) -> None:
        """Fill the bar, unless the cell failed."""
        if failure is None:
            self._bars.update(self._task, completed=self._rounds)


class SweepProgress:
    """A bar for all cells, and one for each that runs."""

    def __init__(
        self, console: Console, name: str, cells: Mapping[str, CellSettings], waiting: Mapping[str, CellSettings]
    ) -> None:
        self._console = console
        self._cells = cells
        self._done = {key: 0 if key in waiting else cell.rounds for key, cell in cells.items()}
        self._num_finished = len(cells) - len(waiting)
        self._running: dict[str, TaskID] = {}
        self._bars = bars(console)
        total = sum(cell.rounds for cell in cells.values())
        self._all = self._bars.add_task(name, total=total, completed=sum(self._done.values()), note=self._count())
        if self._num_finished:
            console.print(f"{self._num_finished} of {len(cells)} cells are finished already.")

    def __enter__(self) -> SweepProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, key: str) -> None:
        """Show the cell's own bar."""
        if key not in self._running:
            cell = self._cells[key]
            label = f"{cell.defense} x {cell.attack}"
            self._running[key] = self._bars.add_task(label, total=cell.rounds, note="")

    def advanced(self, key: str, status: CellStatus) -> None:
        """Take over how far the cell is."""
        self.started(key)
        self._bars.update(self._running[key], completed=status.done, note=headline(status.latest))
        self._moved(key, status.done)

    def finished(self, key: str, failure: str | None) -> None:
        """Put one line in the place of the cell's bar."""
        self._num_finished += failure is None
        if key in self._running:
            self._bars.remove_task(self._running.pop(key))
        word = "[green]finished[/]" if failure is None else f"[red]failed[/]: {failure}"
        self._console.print(f"{key} {word}", highlight=False)
        self._moved(key, self._cells[key].rounds)

    def _moved(self, key: str, done: int) -> None:
        self._done[key] = done
        self._bars.update(self._all, completed=math.fsum(self._done.values()), note=self._count())

    def _count(self) -> str:
        return f"{self._num_finished}/{len(self._cells)} cells"
