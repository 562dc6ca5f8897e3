"""The client's side: a class around a training function, called by the server for every model.

def train(arrays, config):      # in task.py
    ...
    return trained arrays, or a PyTorch state_dict; or a pair, with metrics: what `secureafl.privacy` reports

AsyncClient(train="task:train")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.numpy import load

from secureafl.engines import signing
from secureafl.engines.nvflare.codec import (
    ARRAYS,
    COMPRESSED,
    CONFIG,
    METRICS,
    NONCE,
    OFFER,
    SIGNATURE,
    VERSION,
    Message,
    data_digest,
    pack,
)
from secureafl.engines.nvflare.collab import current_context, publish
from secureafl.engines.nvflare.functions import load_function
from secureafl.engines.offer import Offer
from secureafl.layout import to_arrays
from secureafl.types import NamedArrays
from secureafl.wire import Feedback


class AsyncClient:
    """Trains whenever the server calls.

    train  "module:function"; it gets the model as named arrays and a config, and returns what the server's setting
           `client_returns` says: trained weights, a delta or a gradient
    key    file of the site's signing key, seen from its workspace, such as "local/signing.pem"; empty for none

    Updates are as small as the server's setting `wire` says; what rounding takes from one is added to the next.

    The config holds what the server gives all clients, and `site`, `partition-id`, `num-partitions`, `server-round`.
    """

    def __init__(self, train: str, key: str = "") -> None:
        self.train = train
        self.key = key
        self._feedback: Feedback | None = None

    @publish
    def ping(self) -> bool:
        """Whether this client is alive."""
        return True

    @publish
    def reply(self, dispatch: Message) -> Message:
        """Train on one model of the server's."""
        config = {**dispatch[CONFIG], **_place(), "server-round": dispatch[VERSION]}
        offer = Offer.read(dispatch.get(OFFER, {}))
        model, start = load(dispatch[ARRAYS]), {}
        if offer is not None:
            model = offer.model(model)
            start = {name: array.copy() for name, array in model.items()}  # a client may train in place
        returned = load_function(self.train)(model, config)
        found, metrics = returned if isinstance(returned, tuple) else (returned, {})
        trained, said = to_arrays(found), {METRICS: dict(metrics)} if metrics else {}
        compressed = None if offer is None else self._compressed(offer, start, trained)
        kind, data = (ARRAYS, pack(trained)) if compressed is None else (COMPRESSED, compressed)
        if not self.key:
            return {kind: data, **said}
        key = signing.read_private_key(Path(current_context().workspace.get_root_dir()) / self.key)
        signature = signing.sign(key, dispatch[NONCE], dispatch[VERSION], data_digest(data, kind))
        return {kind: data, **said, SIGNATURE: signature}

    def _compressed(self, offer: Offer, model: NamedArrays, trained: NamedArrays) -> bytes | None:
        if self._feedback is None or self._feedback.wire != offer.wire:
            self._feedback = Feedback(offer.wire)
        return offer.compress(model, trained, self._feedback)


def _place() -> dict[str, Any]:
    """Which of the job's sites this is."""
    context = current_context()
    sites = sorted(str(client.name) for client in context.clients)
    name = str(context.app.name)
    return {"site": name, "partition-id": sites.index(name), "num-partitions": len(sites)}
