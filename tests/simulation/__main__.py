"""Simulated runs from the command line: `python -m tests.simulation --seeds 0:1000`, or `--seed N` to see one.
`--damaged N` damages so many copies of a run in turn.

With `--summary FILE`, what came of them is kept there, part by part; seeds that it holds already are not run again: a
campaign may be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.simulate import fast_folder, simulate
from tests.simulation.test_damage import EXPECTABLE, damage_copies

from secureafl.files import save_json

PART = 100  # seeds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; returns the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--seeds", type=_range, metavar="FROM:TO", help="the seeds from FROM up to, but without, TO")
    asked.add_argument("--seed", type=int, help="one seed: prints what happened in its run")
    asked.add_argument("--damaged", type=int, metavar="N", help="damage N copies of a run, and see who notices")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="keep the counts here (JSON), and go on from it")
    chosen = parser.parse_args(arguments)
    if chosen.damaged is not None:
        return _damage(chosen.damaged, chosen.summary)
    seeds = chosen.seeds or range(chosen.seed, chosen.seed + 1)
    parts = _read(chosen.summary)
    for part in _left(seeds, parts):
        done = _run(part, stop=chosen.stop, verbose=chosen.seed is not None)
        parts.append(done)
        if chosen.summary is not None:
            save_json(chosen.summary, _summary(parts))
        if chosen.stop and done["broken"]:
            break
    found = _summary(parts)
    for kind, count in sorted(found["counts"].items(), key=lambda item: (-item[1], item[0])):
        _say(f"{count:9d}  {kind}")
    _say(f"{found['runs']} runs, {len(found['broken'])} with a broken promise, {found['seconds']:.0f} s")
    return 1 if found["broken"] else 0


def _run(seeds: range, *, stop: bool, verbose: bool) -> dict[str, Any]:
    """What came of these seeds; each broken promise is printed with its seed."""
    counts: Counter[str] = Counter()
    broken: dict[str, str] = {}
    began, last = time.monotonic(), seeds.start
    for seed in seeds:
        report, last = simulate(seed), seed
        counts += report.counts
        if verbose:
            _say("\n".join(report.events))
        if report.broken:
            broken[str(seed)] = report.broken
            _say(f"seed {seed}: {report.broken}; again: python -m tests.simulation --seed {seed}")
            if stop:
                break
    return {
        "seeds": [seeds.start, last + 1],
        "commit": _commit(),
        "seconds": round(time.monotonic() - began, 1),
        "counts": dict(counts),
        "broken": broken,
    }


def _damage(num_copies: int, summary: Path | None) -> int:
    """What became of damaged copies, half of them of a run that forgets old rows; returns the exit code."""
    counts: Counter[str] = Counter()
    for keep_rows in (None, 10):
        with tempfile.TemporaryDirectory(prefix="secureafl-", dir=fast_folder()) as folder:
            counts += damage_copies(Path(folder), keep_rows, num_copies // 2)
    for kind, count in sorted(counts.items()):
        _say(f"{count:9d}  {kind}")
    broken = [kind for kind in counts if kind not in EXPECTABLE]
    if summary is not None:
        command = f"python -m tests.simulation --damaged {num_copies} --summary FILE"
        found = {"command": command, "commit": _commit(), "copies": num_copies, "counts": counts, "broken": broken}
        save_json(summary, found)
    return 1 if broken else 0


def _summary(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    return {
        "command": "python -m tests.simulation --seeds FROM:TO --summary FILE",
        "runs": sum(part["seeds"][1] - part["seeds"][0] for part in parts),
        "commits": sorted({part["commit"] for part in parts}),
        "seconds": sum(part["seconds"] for part in parts),
        "counts": dict(counts),
        "broken": {seed: said for part in parts for seed, said in part["broken"].items()},
        "parts": list(parts),
    }


def _left(seeds: range, parts: Sequence[dict[str, Any]]) -> Iterator[range]:
    """The seeds that no part holds, some at a time."""
    done = {seed for part in parts for seed in range(*part["seeds"])}
    first = seeds.start
    while first < seeds.stop:
        end = first
        while end < min(first + PART, seeds.stop) and end not in done:
            end += 1
        if end > first:
            yield range(first, end)
        first = max(end, first + 1)


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return list(json.loads(path.read_text())["parts"])


def _range(text: str) -> range:
    first, end = map(int, text.split(":"))
    return range(first, end)


def _commit() -> str:
    """The present commit; marked if the code is not the one that it holds."""
    said = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
