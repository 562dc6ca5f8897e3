"""An operator's mistake in one line of Flower's log.

Flower logs whatever an app raises with a traceback, and then an exit code with a link. For a misspelt setting neither
says what to do; the error itself does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from secureafl.errors import DataError, LayoutError, SettingsError, StoreError

MENDABLE = (SettingsError, StoreError, DataError, LayoutError)
"""What an operator can mend; anything else keeps its traceback."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise on what an operator can mend, and have Flower log its message alone."""
    try:
        yield
    except MENDABLE as error:
        logging.getLogger("flwr").addFilter(_Plain(error))
        raise


class _Plain(logging.Filter):
    """Cuts Flower's log of one error down to its message."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and _comes_from(self._error, record.exc_info[1]):
            record.msg, record.args, record.exc_info = " ".join(str(self._error).split()), (), None
            first, self._said = not self._said, True
            return first
        return not (self._said and record.getMessage().startswith("Exit Code:"))


def _comes_from(error: Exception, raised: BaseException | None) -> bool:
    while raised is not None and raised is not error:
        raised = raised.__cause__
    return raised is error
