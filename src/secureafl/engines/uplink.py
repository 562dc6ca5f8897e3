"""A regional server as a client of the one above it: both ends of the folder in which they meet.

The region's server runs on an engine of its own. To the server above, the region is one client: a program that is given
a model, and returns weights. The two meet in a folder:

    model-N.safetensors    left by the client: the model that the server above handed out
    update-N.safetensors   left by the region's server: where its own model stood after `report_every` updates more

The region follows a model from above by moving its own as far as the other moved: what its clients taught it since its
last report is kept, and is part of the next one. So the weights that go up are those of a client that began at the
model it was given and trained locally.

A regional server that starts again loses what it had not reported, and nothing else: it begins at the next model that
comes from above.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from secureafl.engines.engine_settings import EngineSettings
from secureafl.errors import FederationError
from secureafl.files import load_state, safetensors_parts, write_atomically
from secureafl.layout import Layout
from secureafl.server import Federation
from secureafl.types import NamedArrays

POLL_SECONDS = 0.2
CLOSE_SECONDS = 5.0


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


class Uplink:
    """The region's side: follows every model from above, and reports after so many updates of its own clients."""

    def __init__(self, folder: RegionFolder, federation: Federation, layout: Layout, settings: EngineSettings) -> None:
        self._folder = folder
        self._federation = federation
        self._layout = layout
        self._report_every = settings.report_every
        self._anchor = federation.model.params  # from where the region's model has moved since it last met the top
        newest = folder.newest()
        self._done = newest - (newest > 0 and not folder.answered(newest))
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Meet the server above no more."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        try:
            while not self._closed.wait(POLL_SECONDS):
                if (number := self._folder.newest()) > self._done:
                    self._meet(number)
        except BaseException as error:
            if not self._closed.is_set() and not self._federation.stopped:
                self._federation.fail(error)

    def _meet(self, number: int) -> None:
        """Follow this model, learn, and report; or leave it at that if the one above has gone on meanwhile."""
        followed = self._layout.flatten(self._folder.read(number))
        due = self._federation.model.version + 1 + self._report_every  # the move itself is a version
        self._federation.follow(self._anchor - followed).result()
        self._anchor = followed
        while not self._closed.wait(POLL_SECONDS) and self._folder.newest() == number:
            model = self._federation.model
            if model.version >= due:
                self._anchor = model.params
                self._folder.report(number, self._layout.unflatten(model.params))
                break
        self._done = number
