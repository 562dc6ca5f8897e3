"""Does half-precision history cost accuracy? The same training run with both, on Fashion-MNIST.

    python benchmarks/half_precision.py --data <folder with the four idx files>

The paper's network and protocol: 50 clients, random arrivals, staleness up to 10, batch 32, server rate 0.01. Single
evaluations swing by some hundredths, so the test error rate is the mean over ten of them in the second half of the run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from _common import write
from _paper import BATCH, Network, partition, read_images

from secureafl import ClientId, Machine, MachineSettings, SecureAFL, SecureAFLSettings

NUM_CLIENTS, SERVER_LR, MAX_DELAY, NUM_EVALUATIONS = 50, 0.01, 10, 10


def train(precision: str, seed: int, num_arrivals: int, data: Path) -> list[float]:
    """Test error rates at equal distances in the second half of the run."""
    images, labels = read_images(data, "train")
    test = read_images(data, "t10k")
    shares = partition(labels.numpy(), NUM_CLIENTS, np.random.default_rng([seed, 0]))
    network = Network(seed)
    settings = SecureAFLSettings(history_dtype=precision)  # type: ignore[arg-type]
    defense = SecureAFL(network.params().size, settings, server_lr=SERVER_LR)
    machine = Machine(defense, network.params(), MachineSettings(server_lr=SERVER_LR, keep_recent=MAX_DELAY))
    for k in range(NUM_CLIENTS):
        machine.enrol(str(k))
    rates = []
    for arrival in range(num_arrivals):
        rng = np.random.default_rng([seed, 1, arrival])
        client, version = int(rng.integers(NUM_CLIENTS)), int(rng.integers(max(0, arrival - MAX_DELAY), arrival + 1))
        ticket = machine.issue(ClientId(client), version)
        batch = torch.from_numpy(rng.choice(shares[client], BATCH))
        machine.receive(ticket.number, network.gradient(machine.model_of(ticket).params, images[batch], labels[batch]))
        left = num_arrivals - arrival - 1
        if left % (num_arrivals // 2 // NUM_EVALUATIONS) == 0 and left < num_arrivals // 2:
            rates.append(network.error_rate(machine.model.params, *test))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--arrivals", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    runs = []
    for seed in range(args.seeds):
        rates = {p: train(p, seed, args.arrivals, args.data) for p in ("float32", "float16")}
        means = {precision: float(np.mean(values)) for precision, values in rates.items()}
        runs.append({"seed": seed, "test_error_rate": means, "evaluations": rates})
        print(f"seed {seed}: test error rate {means['float32']:.4f} in float32, {means['float16']:.4f} in float16")
    differences = [run["test_error_rate"]["float16"] - run["test_error_rate"]["float32"] for run in runs]
    print(f"difference {np.mean(differences):+.4f}")
    print(
        write("half_precision", 0, {"arrivals": args.arrivals, "runs": runs, "difference": float(np.mean(differences))})
    )


if __name__ == "__main__":
    main()
