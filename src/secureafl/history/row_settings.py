"""Where an operator wants clients' rows to lie. It changes no verdict, so a resumed run may say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy.typing as npt
from pydantic import Field

from secureafl.errors import SettingsError
from secureafl.history.stores import MappedRows, MemoryRows, RowStore
from secureafl.settings import Settings


class RowSettings(Settings):
    """Where the rows of clients lie: what a running mean keeps of each one's last update."""

    rows: Literal["memory", "mapped", "ray"] = "memory"
    """Keep clients' last updates in memory; in a file that is mapped into it and may be larger; or in actors of a Ray
    cluster, with the extra `ray`. No verdict depends on it, and a resumed run may choose anew. For
    `aggregate = "running_mean"`."""
    rows_dir: Path | None = None
    """Folder on a local disk for that file, which has no name in it and is gone with the server. None for the run's own
    folder. For `rows = "mapped"`."""

    ray_address: str | None = None
    """Address of the Ray cluster, `HOST:PORT`; None for the one that was started on this machine. For
    `rows = "ray"`."""
    ray_actors: int | None = Field(None, ge=1)
    """Actors that share the rows; None for one on each node. For `rows = "ray"`."""

    def check_rows(self) -> None:
        """Raise if one of these would do nothing."""
        if self.rows_dir is not None and self.rows != "mapped":
            raise SettingsError(
                f"rows_dir does nothing with rows = {self.rows!r}: leave it out, or set rows = 'mapped'"
            )

        if (self.ray_address, self.ray_actors) != (None, None) and self.rows != "ray":
            raise SettingsError(f"ray_address and ray_actors do nothing with rows = {self.rows!r}: set rows = 'ray'")

    def row_store(self, dim: int, dtype: npt.DTypeLike) -> RowStore:
        """A place for rows of `dim` numbers of this type."""
        self.check_rows()
        if self.rows == "memory":
            return MemoryRows()
        if self.rows == "ray":
            try:
                from secureafl.history.ray_store import RayRows
            except ModuleNotFoundError as error:
                if error.name != "ray":
                    raise
                raise SettingsError('rows = "ray" needs one more package: pip install "secureafl[ray]"') from None
            return RayRows(self.ray_address or "auto", self.ray_actors)
        if self.rows_dir is None:
            raise SettingsError("rows = 'mapped' needs a folder: set rows_dir to one on a local disk")
        return MappedRows(dim, dtype, self.rows_dir)
