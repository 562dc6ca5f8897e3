"""The inner loops that this machine can run: explicit vectors, or plain loops where those cannot be compiled."""

from __future__ import annotations

import platform
from types import ModuleType

from llvmlite import binding

from secureafl.kernels import tile_plain, tile_simd


def _best() -> ModuleType:
    old = platform.machine().lower() in {"x86_64", "amd64"} and not binding.get_host_cpu_features().get("f16c", False)
    return tile_plain if old else tile_simd  # without f16c there is no instruction that widens half precision


_tiles = _best()
accumulate, average_pairs, combine = _tiles.accumulate, _tiles.average_pairs, _tiles.combine
exchange = _tiles.exchange
prefetch, select_middle = _tiles.prefetch, _tiles.select_middle

__all__ = ["accumulate", "average_pairs", "combine", "exchange", "prefetch", "select_middle"]
