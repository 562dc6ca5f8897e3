"""What a server that takes compressed updates offers its clients, and how a client takes it up, on any engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from secureafl.errors import LayoutError
from secureafl.layout import Layout
from secureafl.types import ClientReturns, NamedArrays
from secureafl.wire import Feedback, Wire, decompress_model

WIRE, RETURNS, NAMES, DTYPES = (f"secureafl-{word}" for word in ("wire", "returns", "names", "dtypes"))


@dataclass(frozen=True, slots=True)
class Offer:
    """Goes with every model; who does not know it passes it over."""

    wire: Wire
    returns: ClientReturns
    names: tuple[str, ...]
    """The floating-point arrays, in the order in which the vector of an update holds them."""
    dtypes: tuple[str, ...]
    """Theirs, as clients know them."""

    @classmethod
    def of(cls, layout: Layout, wire: Wire, returns: ClientReturns) -> Offer | None:
        """What is offered; None if updates travel as they are."""
        if wire == "float32":
            return None
        names, dtypes = zip(*((entry.name, str(entry.dtype)) for entry in layout.entries), strict=True)
        return cls(wire, returns, names, dtypes)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Offer | None:
        """The offer in a config; None if there is none, or one that this version does not know."""
        if config.get(WIRE) not in get_args(Wire):
            return None
        return cls(config[WIRE], config[RETURNS], tuple(config[NAMES]), tuple(config[DTYPES]))

    def config(self) -> dict[str, str | list[str]]:
        """As an engine carries it."""
        return {WIRE: self.wire, RETURNS: self.returns, NAMES: list(self.names), DTYPES: list(self.dtypes)}

    def model(self, arrays: NamedArrays) -> NamedArrays:
        """The model in these arrays, of which some may be compressed."""
        return decompress_model(arrays, dict(zip(self.names, self.dtypes, strict=True)))

    def compress(self, model: NamedArrays, returned: NamedArrays, feedback: Feedback) -> bytes | None:
        """The update in what a client returned for a model; None if the server would refuse it, and shall say why."""
        layout = Layout.of({name: model[name] for name in self.names} | model)
        try:
            flat = layout.flatten(returned)
        except LayoutError:
            return None
        return feedback.compress(layout.flatten(model) - flat if self.returns == "weights" else flat)
