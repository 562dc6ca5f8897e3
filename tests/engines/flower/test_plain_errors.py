import io
import logging
from collections.abc import Iterator

import pytest

from secureafl.engines.flower.plain_errors import plain_errors
from secureafl.errors import SecureAFLError, SettingsError


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What Flower's logger writes."""
    logger, said = logging.getLogger("flwr"), io.StringIO()
    handler = logging.StreamHandler(said)
    before = list(logger.filters)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)
    logger.filters[:] = before


def raised(error: Exception) -> Exception:
    try:
        with plain_errors():
            raise error
    except Exception as found:
        return found


def as_flower_does(error: Exception) -> None:
    logger = logging.getLogger("flwr")
    logger.error("%s raised an exception", "ServerApp", exc_info=error)
    logger.error("Exit Code: 201\nAn unhandled exception occurred in the ServerApp.")
    logger.error("something else")


def test_a_mistake_is_one_line(log: io.StringIO) -> None:
    as_flower_does(raised(SettingsError("write\n  something else")))
    assert log.getvalue() == "write something else\nsomething else\n"


def test_a_mistake_that_flower_wraps_is_one_line_too(log: io.StringIO) -> None:
    wrapped = RuntimeError("An error was encountered.")
    wrapped.__cause__ = raised(SettingsError("write something else"))
    as_flower_does(wrapped)
    assert log.getvalue() == "write something else\nsomething else\n"


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), SecureAFLError("a part failed")])
def test_other_errors_keep_their_traceback_and_exit_code(error: Exception, log: io.StringIO) -> None:
    as_flower_does(raised(error))
    assert "Traceback" in log.getvalue()
    assert "Exit Code: 201" in log.getvalue()


def test_another_error_after_a_mistake_keeps_its_traceback(log: io.StringIO) -> None:
    raised(SettingsError("mended in the meantime"))
    as_flower_does(raised(ZeroDivisionError("ours")))
    assert "Traceback" in log.getvalue()
