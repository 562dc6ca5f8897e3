"""Tables and consoles whose text stays whole: at 80 columns, at 200, and in a pipe.

In a pipe nothing is as wide as a terminal, so nothing is wrapped or cut for it. In a terminal that is too narrow, a
table leaves out the columns that matter least; what names a client is never cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

UNLIMITED = 10_000
"""Columns of a pipe: more than any table has."""


class PlainConsole(Console):
    """A console that is as wide as its terminal, or as `COLUMNS` says; in a pipe or a file, as wide as need be."""

    @property
    def size(self) -> ConsoleDimensions:
        found = super().size
        if self.is_terminal or self._width is not None:
            return found
        return ConsoleDimensions(UNLIMITED, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    rank: int
    options: dict[str, Any]


class FittedTable:
    """A table that leaves out its least important columns where there is no room for all of them."""

    def __init__(self, *, title: str = "", caption: str = "", **options: Any) -> None:
        """`title` and `caption` are lines of their own, so that they may be wider than the table. `options` are those
        of Rich's `Table`.
        """
        self._title, self._caption, self._options = title, caption, options
        self._columns: list[_Column] = []
        self._rows: list[tuple[RenderableType, ...]] = []

    def add_column(
        self, header: str, *, rank: int = 0, justify: Literal["left", "right"] = "left", wraps: bool = False
    ) -> None:
        """A column. That of the highest `rank` goes first, one of rank 0 never. Only a text may wrap, at its words."""
        self._columns.append(_Column(header, rank, {"justify": justify, "no_wrap": not wraps, "overflow": "fold"}))

    def add_row(self, *cells: RenderableType) -> None:
        """A row, with a cell for every column."""
        assert len(cells) == len(self._columns)
        self._rows.append(cells)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style="table.title")
        yield self._fitted(console, options)
        if self._caption:
            yield Text(self._caption, style="table.caption")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        table = Measurement.get(console, options, self._fitted(console, options))
        widest = min(options.max_width, max(len(self._title), len(self._caption), table.maximum))
        return Measurement(min(table.minimum, widest), widest)

    def _fitted(self, console: Console, options: ConsoleOptions) -> Table:
        wide, kept = options.update(width=UNLIMITED), list(range(len(self._columns)))
        while Measurement.get(console, wide, table := self._table(kept)).maximum > options.max_width:
            place = max(kept, key=lambda at: self._columns[at].rank)
            if self._columns[place].rank == 0:
                return self._table(kept, whole=False)
            kept.remove(place)
        return table

    def _table(self, kept: list[int], *, whole: bool = True) -> Table:
        """With these columns. `whole`: no cell is wrapped; otherwise text wraps, and names fold at the edge."""
        table = Table(**self._options)
        for place in kept:
            column = self._columns[place]
            table.add_column(column.header, **column.options | ({} if whole else {"no_wrap": False}))
        for cells in self._rows:
            table.add_row(*(cells[place] for place in kept))
        return table
