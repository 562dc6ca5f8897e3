"""Random streams: one independent generator per seed, purpose and indices, so that runs can be paired.

What one part of an experiment draws never moves what another part sees: with the same seed, exchanging the defense or
the attack leaves the selected clients, the delays and the honest batches as they were. The indices tell clients or
rounds apart: `stream(seed, "batch", client, round)`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from secureafl.errors import SettingsError, StateError
from secureafl.types import Array

_WORD = 64
_LOW = (1 << _WORD) - 1


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A generator at its beginning. Equal arguments give equal draws; any others give unrelated ones."""
    return np.random.Generator(np.random.PCG64(_entropy(seed, purpose, indices)))


def torch_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for generators that are not NumPy's."""
    return _entropy(seed, purpose, indices) >> 65


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


def _entropy(seed: int, purpose: str, indices: tuple[int, ...]) -> int:
    """128 bits. Hashed together, because NumPy's SeedSequence would join a list's numbers without marking the seams."""
    if seed < 0 or any(index < 0 for index in indices):
        raise SettingsError(f"a stream needs a seed and indices of 0 or more, not {seed} and {indices}")
    name = "/".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
