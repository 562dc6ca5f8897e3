"""From what an engine brought back to an update, or the reason why there is none in it."""

from __future__ import annotations

import math
from collections.abc import Callable

from secureafl.engines import signing
from secureafl.engines.engine_settings import EngineSettings
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.server.admission import admit
from secureafl.types import NamedArrays, Reason
from secureafl.wire import CompressedUpdate, Reply, decompress

MAX_BYTES_FACTOR = 4  # an update may be wider than float32 (float64 is twice), not more


class UpdateReader:
    """Checks the size, the signature and the shape of what clients send to one federation."""

    def __init__(self, layout: Layout, settings: EngineSettings) -> None:
        num_values = sum(math.prod(shape) for shape in layout.shapes.values())
        self.max_bytes = MAX_BYTES_FACTOR * 4 * num_values + 4096 * len(layout.names)
        self._layout = layout
        self._client_returns = settings.client_returns
        self._wire = settings.wire
        self._keys = signing.KeysFile(settings.keys_file) if settings.keys_file is not None else None

    def read(
        self,
        assignment: Assignment,
        num_bytes: int,
        *,
        signature: Callable[[], object],
        digest: Callable[[], bytes],
        arrays: Callable[[], NamedArrays],
        compressed: bytes | None,
    ) -> Reply:
        """The update in a reply, be it `arrays` or `compressed`. What is not needed is not looked at; what is looked at
        may raise anything.
        """
        if num_bytes > self.max_bytes:
            return Reason.TOO_LARGE
        if self._keys is not None and not self._is_signed(assignment, signature(), digest()):
            return Reason.BAD_SIGNATURE
        if compressed is None:
            return admit(arrays(), self._layout, assignment.params, self._client_returns)
        if self._wire == "float32":
            return Reason.WRONG_NAMES
        delta = decompress(compressed, self._layout.dim)
        return delta if isinstance(delta, Reason) else CompressedUpdate(delta, compressed)

    def _is_signed(self, assignment: Assignment, signature: object, digest: bytes) -> bool:
        assert self._keys is not None
        key = self._keys.get(assignment.client)
        if key is None or not isinstance(signature, bytes):
            return False
        return signing.verify(key, signature, assignment.nonce, assignment.version, digest)
