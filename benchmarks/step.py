"""How fast is one server step, and how far from the machine's limit?

    python benchmarks/step.py [--quick]

For each size, in turns within one run: reading the same bytes once (the limit), the step in plain NumPy, the step in
batched PyTorch (bmm and median, the version one would write first), our pass, and our whole step with the bookkeeping
for the arriving client. Then the coordinate-wise median alone, beside those of other libraries. Times are minima;
on a shared machine only the ratios mean something.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import interleaved, read_once, write
from rich.console import Console
from rich.table import Table

from secureafl import ClientId, Model, SecureAFL, SecureAFLSettings, Update, kernels
from secureafl.kernels.threads import num_threads

SEED = 0
SERVER_LR = 0.01
SIZES = [(50, 139_960), (100, 139_960), (300, 139_960), (50, 500_000), (50, 1_000_000)]
MEDIAN_SIZES = [(50, 139_960), (300, 139_960)]


class Federation:
    """A defense that knows n clients with full memory, and a stream of arrivals for it."""

    def __init__(self, n: int, d: int, precision: str = "float32") -> None:
        self.rng = np.random.default_rng(SEED)
        settings = SecureAFLSettings.paper(correction="calibrated", history_dtype=precision, percentile=1.0)
        self.defense = SecureAFL(d, settings, server_lr=SERVER_LR)
        self.n, self.d, self.version = n, d, 0
        self.noise = self.rng.standard_normal((16, d), dtype=np.float32)
        self.params = self.noise[0] * np.float32(0.05)
        for turn in range(4):
            for k in range(n):
                self.defense.history.remember(ClientId(k), *self.update(k + 5 * turn)[::-1])
        self.arrive()

    def update(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """A base model and an update that grows with it: pairs show positive curvature."""
        base = self.params + np.float32(1e-3 * (k % 7 - 3)) * self.noise[k % 16]
        return base, base + np.float32(1e-3) * self.noise[(k + 5) % 16]

    def arrive(self) -> None:
        base, delta = self.update(self.version + 3)
        here = Model(self.version, self.params)
        update = Update(ClientId(self.version % self.n), Model(self.version, base), delta)
        verdict = self.defense.step(update, here)
        assert verdict.direction is not None
        self.params = self.params - np.float32(SERVER_LR) * verdict.direction
        self.params.flags.writeable = False
        self.version += 1

    def one_pass(self) -> None:
        """What the other versions do: weights from small matrices, estimates, median, the model's move."""
        gaps = self.defense.gaps
        products = gaps.at(self.params)
        self.defense._direction(ClientId(0), self.noise[1], None, self.params)
        gaps._params, gaps._products, gaps._age = self.params, products, 0  # stay here


class Dense:
    """The same history as one array (n, r, d), stepped in NumPy and in PyTorch."""

    def __init__(self, federation: Federation) -> None:
        history = federation.defense.history
        self.rows = np.asarray(history._storage.state_dict()["rows"], np.float32)
        self.matrix = history._matrix[: len(history), 2:, 2:].astype(np.float32)
        self.sigma = history._sigma[: len(history)].astype(np.float32)
        self.params, self.received = federation.params.copy(), federation.noise[1]
        self.tensors = [torch.from_numpy(x) for x in (self.rows, self.matrix, self.sigma, self.params, self.received)]

    def numpy_step(self) -> np.ndarray:
        votes = np.empty((len(self.rows), self.rows.shape[2]), np.float32)
        for k, rows in enumerate(self.rows):
            gap = self.params - rows[1]
            weights = self.matrix[k] @ (rows[2:] @ gap)
            votes[k] = rows[0] + self.sigma[k] * gap + weights @ rows[2:]
        votes[0] = self.received
        return np.asarray(self.params - np.float32(SERVER_LR) * np.median(votes, axis=0))

    def torch_step(self) -> torch.Tensor:
        rows, matrix, sigma, params, received = self.tensors
        gap = params - rows[:, 1]
        weights = torch.bmm(matrix, torch.bmm(rows[:, 2:], gap[:, :, None]))
        votes = rows[:, 0] + sigma[:, None] * gap + torch.bmm(weights.transpose(1, 2), rows[:, 2:])[:, 0]
        votes[0] = received
        return params - SERVER_LR * votes.median(dim=0).values


def measure_step(n: int, d: int, repeats: int) -> dict[str, Any]:
    federation = Federation(n, d)
    dense = Dense(federation)
    chunks = federation.defense.history._pages.chunks
    num_blocks = -(-d // kernels.BLOCK)

    def read() -> None:
        read_once(chunks, num_blocks, num_threads(d * n * 8))

    tasks: dict[str, Callable[[], object]] = {
        "read": read,
        "numpy": dense.numpy_step,
        "torch": dense.torch_step,
        "pass": federation.one_pass,
        "step": federation.arrive,
    }
    counts = {"read": 3 * repeats, "numpy": 2, "torch": repeats, "pass": 3 * repeats, "step": 3 * repeats}
    best = interleaved(tasks, counts)
    return {
        "clients": n,
        "parameters": d,
        "milliseconds": {name: 1e3 * seconds for name, seconds in best.items()},
        "times_numpy": best["numpy"] / best["pass"],
        "times_torch": best["torch"] / best["pass"],
        "share_of_read_limit": best["read"] / best["pass"],
        "whole_step_times_torch": best["torch"] / best["step"],
        "whole_step_share_of_read_limit": best["read"] / best["step"],
    }


def peers(rows: np.ndarray) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Coordinate-wise medians of others, and those that are not installed here."""
    tensor, missing = torch.from_numpy(rows), {}
    tasks: dict[str, Callable[[], object]] = {
        "torch.median": lambda: tensor.median(dim=0),
        "numpy.median": lambda: np.median(rows, axis=0),
    }
    try:
        tasks["byzfl"] = lambda rule=importlib.import_module("byzfl").Median(): rule(rows)
    except ImportError as error:
        missing["byzfl"] = str(error)
    try:
        aggregate = importlib.import_module("flwr.server.strategy.aggregate").aggregate_median
        tasks["flower"] = lambda: aggregate([([row], 1) for row in rows])
    except (ImportError, AttributeError) as error:
        missing["flower"] = str(error)
    return tasks, missing


def measure_median(n: int, d: int, repeats: int) -> dict[str, Any]:
    rows = np.random.default_rng(SEED).standard_normal((n, d), dtype=np.float32)
    tasks, missing = peers(rows)
    tasks["ours"] = lambda: kernels.coordinate_median(rows)
    best = interleaved(tasks, {name: 5 * repeats if name == "ours" else repeats for name in tasks})
    return {
        "clients": n,
        "parameters": d,
        "milliseconds": {name: 1e3 * seconds for name, seconds in best.items()},
        "times": {name: seconds / best["ours"] for name, seconds in best.items() if name != "ours"},
        "not_available": missing,
    }


def show(steps: list[dict[str, Any]], medians: list[dict[str, Any]]) -> None:
    console = Console(width=120)
    table = Table(title="One server step (ms, minima; whole = with the arriving client's bookkeeping)")
    columns = ["n", "d", "read", "numpy", "torch", "pass", "whole", "x numpy", "x torch", "of limit", "whole x torch"]
    for column in columns:
        table.add_column(column, justify="right")
    for row in steps:
        ms = row["milliseconds"]
        times = [f"{ms[name]:.1f}" for name in ("read", "numpy", "torch", "pass", "step")]
        ratios = [f"{row[key]:.1f}" for key in ("times_numpy", "times_torch")]
        limit, whole = f"{row['share_of_read_limit']:.2f}", f"{row['whole_step_times_torch']:.1f}"
        table.add_row(str(row["clients"]), f"{row['parameters']:,}", *times, *ratios, limit, whole)
    console.print(table)
    table = Table(title="Coordinate-wise median alone: how many times as long others take")
    for column in ["n", "d", "ours (ms)", *medians[0]["times"]]:
        table.add_column(column, justify="right")
    for row in medians:
        times = [f"{value:.1f}x" for value in row["times"].values()]
        table.add_row(str(row["clients"]), f"{row['parameters']:,}", f"{row['milliseconds']['ours']:.1f}", *times)
    console.print(table)
    for name, why in medians[0]["not_available"].items():
        console.print(f"{name} is not available here: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, no file")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", type=int, nargs=2, metavar=("N", "D"), help="one size, no file")
    args = parser.parse_args()
    sizes = [tuple(args.only)] if args.only else [(20, 20_000)] if args.quick else SIZES
    steps = [measure_step(n, d, args.repeats) for n, d in sizes]
    medians = [measure_median(n, d, args.repeats) for n, d in (MEDIAN_SIZES if sizes is SIZES else sizes)]
    show(steps, medians)
    if sizes is SIZES:
        print(write("step", SEED, {"step": steps, "median": medians}))


if __name__ == "__main__":
    main()
