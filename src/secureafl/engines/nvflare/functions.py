"""The user's functions by name: a job is data, so it names them, and each site imports them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from secureafl.errors import SettingsError
from secureafl.plugins import load_object

REMEDY = "add its file to the `files` of federation_recipe, or install it on every site"


@functools.cache
def load_function(name: str) -> Callable[..., Any]:
    """The function called "module:function"."""
    found = load_object(name, REMEDY)
    if not callable(found):
        raise SettingsError(f"{name!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
