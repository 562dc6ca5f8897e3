"""Warns of running statistics in a model: averages that BatchNorm keeps of its inputs, which are not weights.

They are floating-point arrays of the model, so they are judged, and a step moves them as it moves weights. But what an
update changes was computed on an older model. Two clients that were given a variance of 1.0 and both send back 0.3 lead
to 1.0 - 0.7 - 0.7 = -0.4 at `server_lr = 1`. BatchNorm takes the root of it, and its output is NaN.
"""

from __future__ import annotations

from secureafl.layout import Layout
from secureafl.types import ClientReturns

RUNNING_STATISTICS = ("running_mean", "running_var")
MAX_NAMED = 4

_WEIGHTS = "are judged and moved like weights, and a running_var can become negative"
_GRADIENTS = "are in no gradient, and an update without them is refused (zeros are taken)"
_REMEDY = (
    "replace BatchNorm by GroupNorm or LayerNorm, or leave these arrays out of the model and keep them at the clients"
)


def running_statistics_warning(layout: Layout, client_returns: ClientReturns) -> str | None:
    """One line that names the running statistics and says what to do; None for a model without them."""
    names = [entry.name for entry in layout.entries if entry.name.endswith(RUNNING_STATISTICS)]
    if not names:
        return None
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    problem = _GRADIENTS if client_returns == "gradient" else _WEIGHTS
    return f"warning: the running statistics {', '.join(names[:MAX_NAMED])}{more} {problem}: {_REMEDY}"
