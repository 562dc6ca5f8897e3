"""From what a client sent to an update the machine can judge, or the reason why not.

Everything here is a pure function of the update and the server's own records; a bad update is a `Reason`, never an
exception.
"""

from __future__ import annotations

from secureafl.kernels import subtracted, without_denormals
from secureafl.layout import Layout
from secureafl.types import ClientReturns, NamedArrays, Reason, Vector


def admit(arrays: NamedArrays, layout: Layout, base: Vector, client_returns: ClientReturns) -> Vector | Reason:
    """The flat update in `arrays`, sent for the model `base`: it points uphill, like a gradient.

    Denormal numbers become zero. Carried arrays (integers) may be absent; their values are not used.
    """
    if reason := _misfit(arrays, layout):
        return reason
    flat = layout.flatten(arrays)
    return subtracted(flat, base) if client_returns == "weights" else without_denormals(flat)


def _misfit(arrays: NamedArrays, layout: Layout) -> Reason | None:
    shapes, judged = layout.shapes, {entry.name for entry in layout.entries}
    if not judged <= arrays.keys() <= shapes.keys():
        return Reason.WRONG_NAMES
    if any(array.shape != shapes[name] for name, array in arrays.items()):
        return Reason.WRONG_SHAPE
    if any(arrays[name].dtype.kind not in "fiu" for name in judged):
        return Reason.WRONG_DTYPE
    return None
