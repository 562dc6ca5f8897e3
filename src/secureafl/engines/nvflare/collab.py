"""NVFlare's Collab decorators and context, with types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from nvflare.collab import collab
from nvflare.collab.api.context import Context, set_call_context

__all__ = ["Context", "Proxy", "current_context", "main", "publish", "set_call_context"]

Function = TypeVar("Function", bound=Callable[..., Any])

Proxy: TypeAlias = Any
"""A client as the server calls it: `proxy(timeout=…).method(…)`."""

main: Callable[[Function], Function] = collab.main
publish: Callable[[Function], Function] = collab.publish


def current_context() -> Context:
    """The context of the Collab function that runs on this thread. Calls from other threads need it set there."""
    return collab.context
