"""The folder in which a region's server meets the region's client of the server above:

    model-N.safetensors    left by the client: the model that the server above handed out
    update-N.safetensors   left by the region's server: where its own model stood after `report_every` updates more

The client's process imports this: it needs nothing of the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from secureafl.errors import FederationError
from secureafl.files import load_state, safetensors_parts, write_atomically
from secureafl.types import NamedArrays

POLL_SECONDS = 0.2


class RegionFolder:
    """The folder in which a region's server and the region's client of the server above meet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def ask(self, model: NamedArrays, timeout: float, clock: Callable[[], float] = time.monotonic) -> NamedArrays:
        """The client's side: leave the model for the region, and wait for where the region's own model stands then."""
        number = self.newest() + 1
        self._write(self._model(number), model)
        deadline = clock() + timeout
        while not self._update(number).exists():
            if clock() > deadline:
                raise FederationError(
                    f"the region's server left no update in {self.directory} for {timeout:.0f} s: is it running, with"
                    " region-dir set to this folder?"
                )
            time.sleep(POLL_SECONDS)
        return load_state(self._update(number))

    def newest(self) -> int:
        """The number of the newest model from above; 0 if there is none yet."""
        return max((int(path.stem.partition("-")[2]) for path in self.directory.glob("model-*.safetensors")), default=0)

    def answered(self, number: int) -> bool:
        """Whether the region has reported for this model."""
        return self._update(number).exists()

    def read(self, number: int) -> NamedArrays:
        """A model from above."""
        return load_state(self._model(number))

    def report(self, number: int, model: NamedArrays) -> None:
        """Leave the region's model for the client, and forget what was there before."""
        self._write(self._update(number), model)
        for path in self.directory.glob("*-*.safetensors"):
            if int(path.stem.partition("-")[2]) < number:
                path.unlink(missing_ok=True)

    def _model(self, number: int) -> Path:
        return self.directory / f"model-{number}.safetensors"

    def _update(self, number: int) -> Path:
        return self.directory / f"update-{number}.safetensors"

    def _write(self, path: Path, arrays: NamedArrays) -> None:
        write_atomically(path, safetensors_parts(arrays))
