"""How a check says that a promise is broken."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def require(holds: bool, message: str) -> None:
    """An `AssertionError` with this message unless the promise holds."""
    if not holds:
        raise AssertionError(message)


def require_numbers(state: Mapping[str, object]) -> None:
    """State is arrays of numbers, so that it can be stored without pickle."""
    for key, value in state.items():
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        require(
            isinstance(value, np.ndarray) and value.dtype.kind in "fiu",
            f"{key!r} of state_dict is {kind}; make it a NumPy array of integers or floats",
        )
