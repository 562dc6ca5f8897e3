"""What the measurements share: the read limit, interleaved timing, and results with where they came from."""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit

from secureafl.kernels import Chunks, simd
from secureafl.kernels.threads import MAX_THREADS, in_parts

ROOT = Path(__file__).parent.parent


READ_PARTS = 64


def read_once(chunks: Chunks, num_blocks: int, threads: int) -> float:
    """Add up all rows of all clients: what any pass has to do at least."""
    out = np.zeros((READ_PARTS, 8))
    in_parts(_read, READ_PARTS, threads, chunks.at, chunks.block_bytes, chunks.chunk_bytes, num_blocks, out)
    return float(out.sum())


@njit(nogil=True)
def _read(first_part, last_part, at, block_bytes, chunk_bytes, num_blocks, out):  # type: ignore[no-untyped-def]
    parts = len(out)
    for part in range(first_part, last_part):
        zero = simd.splat(np.float32(0))
        a, b, c, d = zero, zero, zero, zero
        for block in range(num_blocks * part // parts, num_blocks * (part + 1) // parts):
            for k in range(len(at)):
                first = at[k] + block * block_bytes
                for place in range(first, first + chunk_bytes, 256):
                    a, b = simd.add(a, simd.load(place)), simd.add(b, simd.load(place + 64))
                    c, d = simd.add(c, simd.load(place + 128)), simd.add(d, simd.load(place + 192))
        simd.add_wide(out[part].ctypes.data, simd.add(simd.add(a, b), simd.add(c, d)))


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: Mapping[str, int] | int) -> dict[str, float]:
    """Seconds of the fastest run of each task. Tasks take turns, so that a busy moment of the machine hits them all."""
    counts = {name: repeats if isinstance(repeats, int) else repeats[name] for name in tasks}
    best = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task()
    gc.collect()
    for turn in range(max(counts.values())):
        for name, task in tasks.items():
            if turn < counts[name]:
                start = time.perf_counter()
                task()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def about() -> dict[str, Any]:
    """Where a result comes from: the command, the commit and the versions that made it."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")  # those are what is written
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else ""),
        "threads": MAX_THREADS,
        "machine": platform.machine(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__},
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def write(name: str, seed: int, results: Any) -> Path:
    """results/<name>.json, with where it comes from."""
    path = ROOT / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**about(), "seed": seed, "results": results}, indent=2) + "\n")
    return path
