"""Does half-precision history cost accuracy? The same training run with both, on Fashion-MNIST.

    python benchmarks/half_precision.py --seeds 3

The paper's network and protocol, without an attack. Single evaluations swing by some hundredths, so the test error rate
is the mean over ten of them in the second half of the run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from _common import write

from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.reports.plots import read_cell
from secureafl.lab.sweeps.sweep import CELLS, run_sweep

NUM_EVALUATIONS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    cells = {
        (seed, precision): CellSettings(
            defense_settings={"history_dtype": precision},
            rounds=args.arrivals,
            evaluate_every=args.arrivals // (2 * NUM_EVALUATIONS),
            seed=seed,
        )
        for seed in range(args.seeds)
        for precision in ("float32", "float16")
    }
    with tempfile.TemporaryDirectory() as directory:
        run_sweep("half-precision", list(cells.values()), Path(directory), jobs=args.jobs)
        curves = {key: read_cell(Path(directory) / CELLS / cell.cell_id()).curves for key, cell in cells.items()}
    rates = {key: found["ter"][1][-NUM_EVALUATIONS:].tolist() for key, found in curves.items()}
    runs = []
    for seed in range(args.seeds):
        evaluations = {precision: rates[seed, precision] for precision in ("float32", "float16")}
        means = {precision: float(np.mean(values)) for precision, values in evaluations.items()}
        runs.append({"seed": seed, "test_error_rate": means, "evaluations": evaluations})
        print(f"seed {seed}: test error rate {means['float32']:.4f} in float32, {means['float16']:.4f} in float16")
    difference = float(np.mean([means["float16"] - means["float32"] for means in (r["test_error_rate"] for r in runs)]))
    print(f"difference {difference:+.4f}")
    print(write("half_precision", 0, {"arrivals": args.arrivals, "runs": runs, "difference": difference}))


if __name__ == "__main__":
    main()
