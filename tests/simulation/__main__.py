"""Simulated runs from the command line: `python -m tests.simulation --seeds 0:1000`, or `--seed N` to see one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.simulate import simulate


def main() -> int:
    """Run the seeds; returns the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--seeds", metavar="FROM:TO", help="the seeds from FROM up to, but without, TO")
    asked.add_argument("--seed", type=int, help="one seed: prints what happened in its run")
    parser.add_argument("--stop", action="store_true", help="stop at the first broken promise")
    chosen = parser.parse_args()
    first, end = (chosen.seed, chosen.seed + 1) if chosen.seeds is None else map(int, chosen.seeds.split(":"))
    counts: Counter[str] = Counter()
    broken, began = 0, time.monotonic()
    for seed in range(first, end):
        report = simulate(seed)
        counts += report.counts
        if chosen.seeds is None:
            _say("\n".join(report.events))
        if report.broken:
            broken += 1
            _say(f"seed {seed}: {report.broken}")
            if chosen.stop:
                break
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        _say(f"{count:9d}  {kind}")
    _say(f"{seed + 1 - first} runs, {broken} with a broken promise, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
