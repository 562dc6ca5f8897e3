"""How the soak's servers and its clients talk: a head in JSON and some bytes, over a socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from secureafl.engines import signing

ARRAY = "weights"
"""The model's only array."""

Message: TypeAlias = tuple[dict[str, Any], bytes]


def send(link: Connection, head: Mapping[str, Any], body: bytes = b"") -> None:
    """One message; one thread at a time."""
    text = json.dumps(head).encode()
    link.send_bytes(len(text).to_bytes(4, "big") + text + body)


def receive(link: Connection) -> Message:
    """The next message; EOFError or OSError once the other side is gone."""
    found = link.recv_bytes()
    end = 4 + int.from_bytes(found[:4], "big")
    return json.loads(found[4:end]), found[end:]


def digest(body: bytes) -> bytes:
    """What a signature covers of an update."""
    return signing.digest([(ARRAY, "safetensors", (len(body),), body)])
