"""The `secureafl` command."""

from secureafl.cli.main import app

__all__ = ["app"]
