"""The runs of a folder: found where they lie, read when they are asked for."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from secureafl.errors import SecureAFLError
from secureafl.server.record.address import Place
from secureafl.server.record.folder import DATABASE
from secureafl.view.reader import RunReader

MAX_DEPTH = 4
"""Folders within folders that are looked into."""
SCAN_SECONDS = 2.0


def holds_runs(place: Place) -> bool:
    """Whether this is a folder of runs, and no run itself."""
    return isinstance(place, Path) and place.is_dir() and not (place / DATABASE).exists()


class RunFolder:
    """Runs by key: their path within the folder, as an address can hold it. Threads may share it. `names` is a file of
    clients' names, in all of them.
    """

    def __init__(self, folder: Path, names: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._names = names
        self._clock = clock
        self._lock = threading.RLock()
        self._scanned_at = float("-inf")
        self._places: dict[str, Path] = {}
        self._readers: dict[str, RunReader] = {}

    def found(self) -> list[str]:
        """All runs that are there now, by path."""
        with self._lock:
            if self._clock() - self._scanned_at >= SCAN_SECONDS:
                self._scan()
            return list(self._places)

    def name(self, key: str) -> str:
        """How the run is shown: its path within the folder."""
        return self._places[key].relative_to(self.folder).as_posix()

    def reader(self, key: str) -> RunReader | None:
        """What reads this run; None if there is no such run. A run that cannot be read raises its error."""
        if key not in self.found():
            return None
        with self._lock:
            if key not in self._readers:
                self._readers[key] = RunReader(self._places[key], names=self._names)
            return self._readers[key]

    def read(self, key: str) -> RunReader | SecureAFLError | None:
        """The same, with what stands in the way as a value, and read to its present end."""
        try:
            found = self.reader(key)
            if found is not None:
                found.refresh(SCAN_SECONDS)
        except SecureAFLError as error:
            return error
        return found

    def _scan(self) -> None:
        found: dict[str, Path] = {}
        for path in _runs_in(self.folder):
            key = base = re.sub(r"[^A-Za-z0-9._-]+", "~", path.relative_to(self.folder).as_posix())
            number = 1
            while key in found:
                number += 1
                key = f"{base}~{number}"
            found[key] = path
        for key in [key for key in self._readers if found.get(key) != self._places.get(key)]:
            del self._readers[key]
        self._places, self._scanned_at = found, self._clock()


def _runs_in(folder: Path) -> list[Path]:
    """Folders with a journal, by path. Those below a run, and hidden ones, are not looked into."""
    found = []
    for place, below, files in os.walk(folder):
        path = Path(place)
        if DATABASE in files:
            found.append(path)
        if DATABASE in files or len(path.relative_to(folder).parts) >= MAX_DEPTH:
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
    return found
