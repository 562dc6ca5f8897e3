"""What a poisoned client returns instead of its work, and who is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

Poison = Callable[[ArrayRecord, ArrayRecord], ArrayRecord]
"""(the weights it was given, the weights it trained) -> the weights it returns."""
Change = Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]
"""The same for one array."""


def chosen_poison(node: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The name of this client's poison, or an empty text for an honest client.

    A SuperNode's own config decides: --node-config 'poison="sign-flip"'. Virtual clients have no config of their own,
    so the server's message says which share of them plays the attacker, and how.
    """
    if "poison" in node:
        return str(node["poison"])
    first_honest = round(float(config["poisoned-share"]) * int(node["num-partitions"]))
    return str(config["poison"]) if int(node["partition-id"]) < first_honest else ""


def sign_flip(given: ArrayRecord, trained: ArrayRecord) -> ArrayRecord:
    """Go ten times as far as honest training would, in the opposite direction."""
    return _changed(given, trained, lambda start, end: start - 10.0 * (end - start))


def scale(given: ArrayRecord, trained: ArrayRecord) -> ArrayRecord:
    """Go fifty times as far as honest training would."""
    return _changed(given, trained, lambda start, end: start + 50.0 * (end - start))


def noise(given: ArrayRecord, trained: ArrayRecord) -> ArrayRecord:
    """Return the weights with noise as large as usual weights are."""
    rng = np.random.default_rng()
    return _changed(given, trained, lambda start, end: end + rng.normal(scale=0.1, size=end.shape))


POISONS: Mapping[str, Poison] = {"sign-flip": sign_flip, "scale": scale, "noise": noise}


def _changed(given: ArrayRecord, trained: ArrayRecord, change: Change) -> ArrayRecord:
    changed = {name: change(given[name].numpy(), trained[name].numpy()) for name in given}
    return ArrayRecord({name: Array(array.astype(np.float32)) for name, array in changed.items()})
