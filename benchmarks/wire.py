"""How many bytes an update and a model take over each wire, on a real Flower deployment.

    python benchmarks/wire.py

A SuperLink and two SuperNodes train the paper's network for Fashion-MNIST, with each value of the setting `wire`.
Weighed are a message's content, as Flower sends it, and what the journal holds of an update. The first model to a node
is always float32, as it has not shown yet that it can read another: it is stated apart. Results go to
results/wire.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from _common import write  # noqa: E402
from tests.end_to_end.flower_processes import Deployment  # noqa: E402

from secureafl.server.record.entries import Event  # noqa: E402
from secureafl.server.record.sqlite import read_journal  # noqa: E402
from secureafl.wire import Wire  # noqa: E402

APP = Path(__file__).parent / "wire_app"
NUM_NODES = 2
NUM_UPDATES = 6


def weighed(engine: Deployment, run_dir: Path, wire: Wire) -> dict[str, Any]:
    """Bytes of one run: of messages by direction, and in the journal."""
    config = {
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


def main() -> None:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory) / "flower") as engine:
        engine.start_nodes({index: {} for index in range(NUM_NODES)})
        for wire in get_args(Wire):
            results[wire] = weighed(engine, Path(directory) / wire, wire)
    table = Table(title="Bytes, and as a share of float32")
    for column in ("", *results):
        table.add_column(column, justify="right" if column else "left")
    plain = results["float32"]
    for what in [name for name in plain if name != "updates"]:
        shares = {wire: found[what] / plain[what] for wire, found in results.items()}
        table.add_row(what, *(f"{results[wire][what]:,} ({shares[wire]:.3f})" for wire in results))
        for wire, share in shares.items():
            results[wire].setdefault("share of float32", {})[what] = round(share, 4)
    Console().print(table)
    print(write("wire", 0, results))


if __name__ == "__main__":
    main()
