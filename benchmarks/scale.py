"""How does a server step's cost grow with clients and with the model's size?

    python benchmarks/scale.py [--quick]

SecureAFL with the median, the default of 0.1, behind the machine, as a federation runs it. For each size, in turns
within one run: reading all that is remembered of the clients once (the limit), and one arrival from ticket to new
model. Times are minima; on a shared machine only ratios mean something. Largest size: 4 GB of history.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import numpy as np
from _common import interleaved, read_once, write
from rich.console import Console
from rich.table import Table

from secureafl import ClientId, Machine, MachineSettings, SecureAFL, SecureAFLSettings, kernels
from secureafl.kernels.threads import num_threads

SEED = 0
SERVER_LR = 0.01
CLIENTS = [(n, 139_960) for n in (10, 30, 100, 300, 1000)]
PARAMETERS = [(50, d) for d in (100_000, 1_000_000, 10_000_000)]
QUICK_CLIENTS = [(n, 20_000) for n in (10, 30)]
QUICK_PARAMETERS = [(20, d) for d in (10_000, 40_000)]
NUM_NOISES = 5  # vectors of randomness that all updates are made from


class Federation:
    """A machine whose defense knows n clients, and a stream of arrivals for it."""

    def __init__(self, n: int, d: int) -> None:
        rng = np.random.default_rng(SEED)
        self.noise = rng.standard_normal((NUM_NOISES, d), dtype=np.float32)
        self.defense = SecureAFL(d, SecureAFLSettings(aggregate="median"), server_lr=SERVER_LR)
        start = np.float32(0.05) * self.noise[0]
        self.machine = Machine(self.defense, start, MachineSettings(server_lr=SERVER_LR))
        self.n, self.arrivals = n, 0
        for k in range(n):
            self.defense.history.remember(self.machine.enrol(f"client-{k}"), self.update(start), start)

    def update(self, params: np.ndarray) -> np.ndarray:
        """A noisy gradient of a bowl: everyone is honest."""
        self.arrivals += 1
        return np.asarray(params + self.noise[self.arrivals % NUM_NOISES], np.float32)

    def arrive(self) -> None:
        ticket = self.machine.issue(ClientId(self.arrivals % self.n))
        verdict = self.machine.receive(ticket.number, self.answer)
        assert verdict.direction is not None

    def prepare(self) -> None:
        """Make the next update, which is the client's work and not the server's."""
        self.answer = self.update(self.machine.model.params)


def measure(n: int, d: int, repeats: int) -> dict[str, Any]:
    gc.collect()
    before = resident_bytes()
    federation = Federation(n, d)
    federation.prepare()
    federation.arrive()
    pages = federation.defense.history._pages
    chunks, num_blocks = pages.chunks, -(-d // kernels.BLOCK)

    def read() -> None:
        read_once(chunks, num_blocks, num_threads(d * n * pages.num_rows))

    best = interleaved({"read": read, "prepare": federation.prepare, "step": federation.arrive}, repeats)
    return {
        "clients": n,
        "parameters": d,
        "bytes": pages.memory_bytes,
        "resident_bytes": resident_bytes() - before,
        "milliseconds": {name: 1e3 * best[name] for name in ("read", "step")},
        "share_of_read_limit": best["read"] / best["step"],
        "nanoseconds_per_client_and_parameter": 1e9 * best["step"] / (n * d),
    }


def resident_bytes() -> int:
    """Memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="One server step (ms, minima), defaults")
    for column in ("clients", "parameters", "history (MB)", "read", "step", "of limit", "ns per client and parameter"):
        table.add_column(column, justify="right")
    for row in rows:
        ms = row["milliseconds"]
        table.add_row(
            f"{row['clients']:,}",
            f"{row['parameters']:,}",
            f"{row['bytes'] / 1e6:,.0f}",
            f"{ms['read']:.2f}",
            f"{ms['step']:.2f}",
            f"{row['share_of_read_limit']:.2f}",
            f"{row['nanoseconds_per_client_and_parameter']:.2f}",
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, no file")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    sizes = (QUICK_CLIENTS, QUICK_PARAMETERS) if args.quick else (CLIENTS, PARAMETERS)
    clients, parameters = ([measure(n, d, args.repeats) for n, d in part] for part in sizes)
    show(clients + parameters)
    if not args.quick:
        print(write("scale", SEED, {"clients": clients, "parameters": parameters}))


if __name__ == "__main__":
    main()
