"""Says once that kernels are being compiled, when they really are: the first run on a machine waits for it."""

from __future__ import annotations

import logging
from typing import Any

from numba.core import event

_LOGGER = logging.getLogger("secureafl")


class _Notice(event.Listener):
    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:
        dispatcher = (event.data or {}).get("dispatcher")
        module = str(getattr(getattr(dispatcher, "py_func", None), "__module__", ""))
        if not self._said and module.startswith("secureafl."):
            self._said = True
            _LOGGER.warning("compiling kernels: some seconds, once per machine")

    def on_end(self, event: Any) -> None:
        pass


def install() -> None:
    """Listen to Numba; it reports a compilation only when its cache on disk has no result."""
    event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]
