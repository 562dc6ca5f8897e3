"""A regional server as a client of the one above it: its own end of the folder in which they meet.

The region's server runs on an engine of its own. To the server above, the region is one client: a program that is given
a model, and returns weights.

The region follows a model from above by moving its own as far as the other moved: what its clients taught it since its
last report is kept, and is part of the next one. So the weights that go up are those of a client that began at the
model it was given and trained locally.

A regional server that starts again loses what it had not reported, and nothing else: it begins at the next model that
comes from above.
"""

from __future__ import annotations

import threading

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.region_folder import POLL_SECONDS, RegionFolder
from secureafl.layout import Layout
from secureafl.server import Federation

CLOSE_SECONDS = 5.0


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
