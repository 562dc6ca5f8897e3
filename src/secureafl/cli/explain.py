"""How the `secureafl` command tells an operator what went wrong: one line on stderr that says what to do."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from secureafl.errors import SecureAFLError, described
from secureafl.text import visible

EXTRAS = {
    "flwr": "flower",
    **dict.fromkeys(("torch", "datasets", "flwr_datasets", "matplotlib", "pyarrow", "PIL"), "lab"),
    **dict.fromkeys(("cryptography", "prometheus_client", "starlette", "uvicorn"), "ops"),
    "nvflare": "nvflare",
    "psycopg": "postgres",
    "ray": "ray",
}
"""What brings a package that is missing."""


class ExplainingGroup(TyperGroup):
    """A command line that meets mistakes of its operator with one line, and bugs of ours with a traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command and leave."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            line = explain(error)
            if line is None:
                raise
            if line:
                Console(stderr=True).print(Text(line), style="red", soft_wrap=True)
            code = 2
        sys.exit(code if isinstance(code, int) else 0)


def explain(error: Exception) -> str | None:
    """One line for a mistake that the operator can mend; None for what is a bug."""
    match error:
        case typer.Abort():
            return "Stopped."
        case SecureAFLError():
            return _one_line(str(error))
        case ModuleNotFoundError(name=str(name)) if (package := name.partition(".")[0]) in EXTRAS:
            return f'This needs {package}, which is not installed: pip install "secureafl[{EXTRAS[package]}]"'
        case OSError(errno=errno.EADDRINUSE):
            return f"{_one_line(str(error))}: stop what uses this port, or choose another with --port"
        case OSError():
            return _one_line(described(error))
    # The command line's own: Typer takes them from Click, or from the copy of it that newer ones bring along.
    if callable(format_message := getattr(error, "format_message", None)):
        context, line = getattr(error, "ctx", None), _one_line(format_message())
        stop = "" if line.endswith((".", "?", ")")) else "."
        return f"{line}{stop} Try: {context.command_path} --help" if context and line else line
    return None


def _one_line(text: str) -> str:
    """The text without line breaks and control characters, and no sentence twice in a row."""
    sentences = re.split(r"(?<=[.?]) ", visible(" ".join(text.split())))
    return " ".join(now for before, now in zip(["", *sentences], sentences, strict=False) if now != before)
