"""How kernels are compiled, and where what was compiled is kept: once per user and machine, for every environment.

Numba keeps compiled functions beside their source, so each virtual environment would compile its own. Here they go into
the user's cache folder, under a name made of the source of all kernels and of Numba's version: a change in any file of
this package, also in one that only lends an inner loop, leads to a new folder. Who sets NUMBA_CACHE_DIR is obeyed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache

from secureafl.files import locked

OTHERWISE = "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,ZipCacheLocator"
"""Numba's own places, for a user without a cache folder."""


def kernel(function: Callable[..., Any]) -> Any:
    """A function that Python calls: compiled when it is first called, kept on disk, free of Python's lock."""
    config: Any = numba.config
    before = getattr(config, "CACHE_LOCATOR_CLASSES", None)  # Numba reads it when a function is decorated
    if before != "" or config.CACHE_DIR:  # an old Numba, or somebody has chosen a place
        return _compiled(function)
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{SharedFolder.__name__},{OTHERWISE}"
    try:
        return _compiled(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = before


def _compiled(function: Callable[..., Any]) -> Any:
    dispatcher: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
    dispatcher._cache = OneWriter(function)  # type: ignore[no-untyped-call]
    return dispatcher


class OneWriter(FunctionCache):
    """Numba's cache of one function, which one process writes to at a time.

    Numba numbers the files of a function's signatures. Two processes that add one each at the same moment give both the
    same number, and from then on a call with one signature is answered by the code of the other.
    """

    def save_overload(self, sig: Any, data: Any) -> None:
        self._impl.locator.ensure_cache_path()
        with locked(Path(self.cache_path)):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def inner(function: Callable[..., Any]) -> Any:
    """A function that only kernels call: compiled with each of them."""
    return njit(error_model="numpy")(function)


@cache
def fingerprint() -> str:
    """A name for what the compiled kernels depend on; Numba itself keeps processors apart."""
    total = hashlib.sha256(platform.python_version().encode())
    for package in ("numba", "llvmlite", "numpy"):
        total.update(importlib.metadata.version(package).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:16]


def folder() -> Path:
    """Where this user's compiled kernels are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "secureafl" / "kernels" / fingerprint()


class SharedFolder:
    """Numba's cache, in that folder. What lies there is executed, so nobody else may be able to write to it."""

    def __init__(self, function: Any, file: str) -> None:
        self._line = function.__code__.co_firstlineno
        self._path = folder()

    @classmethod
    def from_function(cls, function: Any, file: str) -> SharedFolder | None:
        """Where this function is kept; None if there is no safe place."""
        try:
            found = cls(function, file)
            found.ensure_cache_path()
            state = found._path.stat()
        except (OSError, RuntimeError):  # no home, or one that cannot be written to
            return None
        ours = not hasattr(os, "getuid") or state.st_uid == os.getuid()
        return found if ours and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None

    def ensure_cache_path(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._path)

    def get_source_stamp(self) -> str:
        return fingerprint()

    def get_disambiguator(self) -> str:
        return str(self._line)
