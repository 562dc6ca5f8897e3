"""How many bytes an update and a model take over each wire, on a real Flower deployment.

    python benchmarks/wire.py [--quick]

A SuperLink and two SuperNodes train the paper's network for Fashion-MNIST, with each value of the setting `wire`.
Weighed are a message's content, as Flower sends it, and what the journal holds of an update. The first model to a node
is always float32, as it has not shown yet that it can read another: it is stated apart. No figure: a picture would say
no more than the table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from _common import Table, main  # noqa: E402
from tests.end_to_end.flower_processes import Config, Deployment  # noqa: E402

from secureafl.server.record.entries import Event  # noqa: E402
from secureafl.server.record.sqlite import read_journal  # noqa: E402
from secureafl.wire import Wire  # noqa: E402

APP = Path(__file__).parent / "wire_app"
NUM_NODES = 2
NUM_UPDATES = 6
PARTS = {
    "message with an update": ("message with an update",),
    "message with a model, from the second on": ("message with a later model",),
    "both together": ("message with an update", "message with a later model"),
    "update in the journal": ("update in the journal",),
}
"""What the table shows, and what it is the sum of."""
QUICK: tuple[Wire, ...] = ("int8",)


def weighed(engine: Deployment, run_dir: Path, wire: Wire) -> dict[str, Any]:
    """Bytes of one run: of messages by direction, and in the journal."""
    config: Config = {
        "secureafl.wire": wire,
        "secureafl.run-dir": str(run_dir),
        "secureafl.min-nodes": NUM_NODES,
        "secureafl.stop-after-updates": NUM_UPDATES,
    }
    run = engine.run(APP, config, timeout=1200.0)
    [line] = [line for line in run.log_text().splitlines() if "MEASURED " in line]
    found = json.loads(line[line.index("{") :])
    journal = read_journal(run_dir / "run.db")
    kept = [len(row.payload or b"") for row in journal.entries(Event.ARRIVAL, payloads=True)]
    journal.close()
    return {
        "updates": len(kept),
        "message with an update": int(np.median(found["updates"])),
        "message with the first model": max(found["models"][:NUM_NODES]),
        "message with a later model": int(np.median(found["models"][NUM_NODES:])),
        "update in the journal": int(np.median(kept)),
    }


def measure(quick: bool) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory) / "flower") as engine:
        engine.start_nodes({index: {} for index in range(NUM_NODES)})
        for wire in QUICK if quick else get_args(Wire):
            results[wire] = weighed(engine, Path(directory) / wire, wire)
    return results


def tables(results: dict[str, Any]) -> list[Table]:
    first, plain = next(iter(results.items()))
    rows = []
    for label, parts in PARTS.items():
        sums = [(sum(found[part] for part in parts), sum(plain[part] for part in parts)) for found in results.values()]
        rows.append((label, *(f"{mine:,} ({mine / all_plain:.3f})" for mine, all_plain in sums)))
    return [Table((f"bytes (share of {first})", *results), rows)]


if __name__ == "__main__":
    main(__doc__, "wire", measure, tables)
