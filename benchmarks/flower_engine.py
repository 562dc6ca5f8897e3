"""What SecureAFL's server step costs a federation on Flower, against the same app whose step does nothing.

    python benchmarks/flower_engine.py simulation    # 50 virtual nodes, 139,960 and 1,000,000 parameters
    python benchmarks/flower_engine.py deployment    # SuperLink, 4 SuperNodes, and 46 more clients the server knows
    python benchmarks/flower_engine.py slow-node     # do 2 nodes keep their pace beside one 20 times slower?

Both steps take turns within one run. Results go to results/flower_engine.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from _common import about  # noqa: E402
from tests.end_to_end.flower_processes import Deployment, Run, Simulation  # noqa: E402

APP = Path(__file__).parent / "engine_app"
RESULTS = ROOT / "results" / "flower_engine.json"
NUM_CLIENTS = 50
SLOW_SECONDS = 45.0


def measured(run: Run) -> dict[str, Any]:
    [line] = [line for line in run.log_text().splitlines() if "MEASURED " in line]
    return dict(json.loads(line[line.index("{") :]))


def simulation(dim: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, Simulation(Path(directory) / "flower") as engine:
        config = {"dim": dim, "num-known": 0, "secureafl.min-nodes": NUM_CLIENTS, "phase-seconds": 10.0}
        return measured(engine.run(APP, config, num_supernodes=NUM_CLIENTS, timeout=900.0))


def deployment(dim: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory) / "flower") as engine:
        engine.start_nodes({index: {"delay": 0.0} for index in range(4)})
        config = {"dim": dim, "num-known": NUM_CLIENTS - 4, "secureafl.min-nodes": 4}
        config |= {"phase-seconds": 45.0, "repeats": 1}
        return measured(engine.run(APP, config, timeout=900.0))


def slow_node() -> dict[str, Any]:
    """The pace of two nodes that take 3 s each, alone and beside one that takes 60 s."""
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory) / "flower") as engine:
        engine.start_nodes({index: {"delay": 3.0} for index in range(2)})
        config = {"dim": 1000, "num-known": 1, "secureafl.min-nodes": 2, "phase-seconds": SLOW_SECONDS, "repeats": 1}
        alone = measured(engine.run(APP, config, timeout=600.0))
        slow = engine.start_node(2, {"delay": 60.0})
        beside = measured(engine.run(APP, config, timeout=900.0))
        without_slow = [{**counts, str(slow.node_id): 0} for counts in beside["clients"]]
        return {
            "others alone": [sum(counts.values()) / SLOW_SECONDS for counts in alone["clients"]],
            "others beside a slow node": [sum(counts.values()) / SLOW_SECONDS for counts in without_slow],
        }


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what not in {"simulation", "deployment", "slow-node"}:
        sys.exit(__doc__)
    entry = about()
    table = Table(title=f"Flower, {what}")
    for column in ("case", "bare updates/s", "with SecureAFL", "ratio"):
        table.add_column(column, justify="left" if column == "case" else "right")
    if what == "slow-node":
        found = slow_node()
        alone, beside = (statistics.median(values) for values in found.values())
        entry |= found | {"ratio": beside / alone}
        table.add_row("two nodes, beside one 20x slower", f"{alone:.3f}", f"{beside:.3f}", f"{beside / alone:.3f}")
    else:
        for dim in (139_960, 1_000_000):
            rates = (simulation if what == "simulation" else deployment)(dim)["rates"]
            bare, ours = (statistics.median(rates[name]) for name in ("bare", "secureafl"))
            entry[f"d={dim}"] = {**rates, "ratio": ours / bare}
            table.add_row(f"n = {NUM_CLIENTS}, d = {dim:,}", f"{bare:.2f}", f"{ours:.2f}", f"{ours / bare:.3f}")
    RESULTS.parent.mkdir(exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**kept, what: entry}, indent=2) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
