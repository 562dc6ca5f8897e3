"""The user's functions by name: a job is data, so it names them, and each site imports them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from secureafl.errors import SettingsError


@functools.cache
def load_function(name: str) -> Callable[..., Any]:
    """The function called "module:function"."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise SettingsError(f'{name!r} names no function: write "module:function"')
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"cannot load {name!r}: {error}. Add the module's file to the `files` of federation_recipe, or install it "
            "on every site"
        ) from error
    if not callable(found):
        raise SettingsError(f"{name!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
