import socket

import pytest
import typer
from typer.testing import CliRunner

from secureafl.cli.explain import ExplainingGroup, explain
from secureafl.errors import SettingsError, StoreError


def test_an_error_of_ours_is_its_own_message_on_one_line() -> None:
    assert (
        explain(StoreError("runs/today holds no run:\n  name its folder")) == "runs/today holds no run: name its folder"
    )


def test_an_error_cannot_steer_the_terminal() -> None:
    assert explain(StoreError("no client \x1b[2Jx")) == r"no client \x1b[2Jx"


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("torch", "lab"),
        ("matplotlib.figure", "lab"),
        ("uvicorn", "ops"),
        ("flwr.app", "flower"),
        ("nvflare", "nvflare"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(package: str, extra: str) -> None:
    line = explain(ModuleNotFoundError(f"No module named {package!r}", name=package))
    assert line is not None
    assert f'pip install "secureafl[{extra}]"' in line


def test_a_busy_port_says_to_choose_another() -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        with pytest.raises(OSError, match="in use") as caught:
            second.bind(first.getsockname())
    line = explain(caught.value)
    assert line is not None
    assert "choose another with --port" in line


def test_a_file_that_cannot_be_written_is_named() -> None:
    assert explain(PermissionError(13, "Permission denied", "/runs/today")) == "Permission denied: /runs/today"


@pytest.mark.parametrize(
    "error", [ValueError("x"), ModuleNotFoundError("No module named 'secureafl.x'", name="secureafl.x")]
)
def test_our_bugs_keep_their_traceback(error: Exception) -> None:
    assert explain(error) is None


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(cls=ExplainingGroup)

    @app.command()
    def fail(count: int) -> None:
        """Fail in the way asked for."""
        if count == 1:
            raise SettingsError("write something else")
        if count == 2:
            raise typer.Exit(7)
        if count == 3:
            raise ZeroDivisionError

    @app.command()
    def other() -> None:
        """A second command makes it a group."""

    return app


@pytest.mark.parametrize(("count", "code"), [("0", 0), ("1", 2), ("2", 7), ("x", 2)])
def test_exit_codes(app: typer.Typer, count: str, code: int) -> None:
    assert CliRunner().invoke(app, ["fail", count]).exit_code == code


def test_a_bug_is_raised(app: typer.Typer) -> None:
    assert isinstance(CliRunner().invoke(app, ["fail", "3"]).exception, ZeroDivisionError)
