"""Random streams: one independent generator per (seed, purpose, index), so that runs can be paired.

What one part of an experiment draws never moves what another part sees: with the same seed, exchanging the defense or
the attack leaves the selected clients, the delays and the honest batches as they were.

Purposes in use: init, partition, malicious-set, select, delay, batch (index = client), trusted, trigger,
attack (index = client).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError, StateError
from secureafl.types import Array, StateDict

_WORD = 64
_LOW = (1 << _WORD) - 1


def stream(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """A generator at its beginning. Equal arguments give equal draws; any other triple gives unrelated ones."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, index)))


def torch_seed(seed: int, purpose: str, index: int = 0) -> int:
    """A 63-bit seed for generators that are not NumPy's."""
    return _entropy(seed, purpose, index) >> 65


def generator_state(rng: np.random.Generator) -> npt.NDArray[np.uint64]:
    """(6,) where a PCG64 generator stands, as plain numbers."""
    state = rng.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise StateError(f"a stream is a PCG64 generator, not {state['bit_generator']}")
    position, increment = state["state"]["state"], state["state"]["inc"]
    words = [position & _LOW, position >> _WORD, increment & _LOW, increment >> _WORD]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def restore_generator(rng: np.random.Generator, words: Array) -> None:
    """Put a PCG64 generator where `generator_state` found one."""
    if words.shape != (6,) or words.dtype != np.uint64:
        raise StateError(f"a stream's state has shape {words.shape} and type {words.dtype}; it needs (6,) uint64")
    low, high, inc_low, inc_high, has_uint32, uinteger = (int(word) for word in words.tolist())
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": low | high << _WORD, "inc": inc_low | inc_high << _WORD},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


class Streams:
    """The streams of one run: the same (purpose, index) always answers with the same generator, which moves on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._open: dict[tuple[str, int], np.random.Generator] = {}

    def get(self, purpose: str, index: int = 0) -> np.random.Generator:
        """The one generator for this purpose; opened at its beginning on first use."""
        key = (purpose, index)
        if key not in self._open:
            self._open[key] = stream(self.seed, purpose, index)
        return self._open[key]

    def state_dict(self) -> StateDict:
        """Where every opened stream stands."""
        return {f"{purpose}/{index}": generator_state(rng) for (purpose, index), rng in self._open.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Stand where `state_dict` stood. Streams not named there start anew."""
        self._open.clear()
        for name, words in state.items():
            purpose, _, index = name.rpartition("/")
            if not purpose or not index.isdecimal():
                raise StateError(f"{name!r} is not the name of a stream")
            restore_generator(self.get(purpose, int(index)), words)


def _entropy(seed: int, purpose: str, index: int) -> int:
    """128 bits. Hashed together, because NumPy's SeedSequence would join a list's numbers without marking the seams."""
    if seed < 0 or index < 0:
        raise SettingsError(f"a stream needs seed ≥ 0 and index ≥ 0, not seed = {seed}, index = {index}")
    digest = hashlib.blake2b(f"{seed}/{purpose}/{index}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")
