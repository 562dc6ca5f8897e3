"""Where an operator wants clients' rows to lie. It changes no verdict, so a resumed run may say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy.typing as npt

from secureafl.errors import SettingsError
from secureafl.history.stores import MappedRows, MemoryRows, RowStore
from secureafl.settings import Settings


class RowSettings(Settings):
    """Where the rows of clients lie: what a running mean keeps of each one's last update."""

    rows: Literal["memory", "mapped"] = "memory"
    """Keep clients' last updates in memory, or in a file that is mapped into it and may be larger. For
    `aggregate = "running_mean"`."""
    rows_dir: Path | None = None
    """Folder on a local disk for that file, which has no name in it and is gone with the server. None for the run's own
    folder. For `rows = "mapped"`."""

    def check_rows(self) -> None:
        """Raise if one of these would do nothing."""
        if self.rows_dir is not None and self.rows != "mapped":
            raise SettingsError(
                f"rows_dir does nothing with rows = {self.rows!r}: leave it out, or set rows = 'mapped'"
            )

    def row_store(self, dim: int, dtype: npt.DTypeLike) -> RowStore:
        """A place for rows of `dim` numbers of this type."""
        self.check_rows()
        if self.rows == "memory":
            return MemoryRows()
        if self.rows_dir is None:
            raise SettingsError("rows = 'mapped' needs a folder: set rows_dir to one on a local disk")
        return MappedRows(dim, dtype, self.rows_dir)
