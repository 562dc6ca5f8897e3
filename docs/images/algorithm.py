"""The pictures of `explanation/algorithm.md`, computed anew: python docs/images/algorithm.py

A federation of twenty clients with quadratic losses of their own and noisy gradients, four of whom send the reverse,
ten times as long; and votes on one coordinate. Every number comes from `secureafl` itself; seeds are fixed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from secureafl import Machine, MachineSettings, build_defense, kernels
from secureafl.defenses.secureafl.combine.coordinate_wise import shuffled

HERE = Path(__file__).parent
SEED = 7
NUM_CLIENTS, NUM_MALICIOUS, DIM, ARRIVALS, SERVER_LR = 20, 4, 30, 800, 0.05
HONEST, MALICIOUS, LIMIT = "#1f6fb4", "#d1495b", "#444444"
Floats = npt.NDArray[np.float64]


class Arrival(NamedTuple):
    """What one arrival showed."""

    malicious: bool
    factor: float
    threshold: float
    distance: float


def federate(defense: str, num_malicious: int = NUM_MALICIOUS) -> list[Arrival]:
    """Everyone holds a model at all times; a random client answers next."""
    rng = np.random.default_rng(SEED)
    optimum = rng.normal(size=DIM)
    own = optimum + 0.2 * rng.normal(size=(NUM_CLIENTS, DIM))
    curvature = rng.uniform(0.5, 2.0, size=(NUM_CLIENTS, DIM))
    rule = build_defense(defense, DIM, server_lr=SERVER_LR)
    machine = Machine(rule, np.zeros(DIM, np.float32), MachineSettings(server_lr=SERVER_LR))
    tickets = [machine.issue(machine.enrol(f"client-{k}")) for k in range(NUM_CLIENTS)]
    arrivals = []
    for _ in range(ARRIVALS):
        k = int(rng.integers(NUM_CLIENTS))
        gradient = curvature[k] * (machine.model_of(tickets[k]).params - own[k]) + 0.3 * rng.normal(size=DIM)
        sent = np.float32(-10 * gradient if k < num_malicious else gradient)
        verdict = machine.receive(tickets[k].number, sent)
        tickets[k] = machine.issue(tickets[k].client)
        evidence = verdict.evidence
        arrivals.append(
            Arrival(
                k < num_malicious,
                evidence.get("lipschitz_factor", np.nan),
                evidence.get("threshold", np.nan),
                float(np.linalg.norm(machine.published.params - optimum)),
            )
        )
    return arrivals


def draw_factors(path: Path) -> None:
    arrivals = federate("secureafl")
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    for malicious, colour, label in ((False, HONEST, "honest clients"), (True, MALICIOUS, "malicious clients")):
        shown = [(at, arrival.factor) for at, arrival in enumerate(arrivals) if arrival.malicious == malicious]
        axes.scatter(*zip(*shown, strict=True), s=9, color=colour, label=label, alpha=0.75, linewidths=0)
    axes.plot([arrival.threshold for arrival in arrivals], color=LIMIT, lw=1.4, label="threshold")
    axes.set(yscale="log", xlabel="arrival", ylabel=r"Lipschitz factor $\lambda$")
    finish(figure, axes, path)


def draw_course(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    for defense, malicious, colour, style in (
        ("asyncsgd", NUM_MALICIOUS, MALICIOUS, "-"),
        ("secureafl", NUM_MALICIOUS, HONEST, "-"),
        ("secureafl", 0, LIMIT, ":"),
    ):
        label = f"{defense}, {f'{malicious} of {NUM_CLIENTS} malicious' if malicious else 'no attack'}"
        axes.plot([arrival.distance for arrival in federate(defense, malicious)], style, color=colour, label=label)
    axes.set(yscale="log", ylim=(0.2, 1e3), xlabel="arrival", ylabel="distance to the optimum")
    finish(figure, axes, path)


def draw_median(path: Path) -> None:
    """How far the result of twenty votes moves when some of them are malicious, in honest standard deviations."""
    rng = np.random.default_rng(SEED)
    num_coordinates, sent = 20_000, np.float32(-10.0)
    counts = range(NUM_CLIENTS + 1)
    moved: dict[str, list[float]] = {"mean": [], "median of pairs (bucket = 2)": [], "median (bucket = 1)": []}
    for num_malicious in counts:
        votes = rng.normal(size=(NUM_CLIENTS, num_coordinates)).astype(np.float32)
        votes[:num_malicious] = sent
        # Pairs are drawn anew for every arrival; here, for every hundred coordinates.
        parts = np.split(votes, num_coordinates // 100, axis=1)
        pairs = [part[shuffled(NUM_CLIENTS, at)].reshape(-1, 2, 100).mean(axis=1) for at, part in enumerate(parts)]
        in_pairs = np.concatenate([kernels.coordinate_median(np.ascontiguousarray(pair)) for pair in pairs])
        moved["mean"].append(-float(votes.mean()))
        moved["median of pairs (bucket = 2)"].append(-float(in_pairs.mean()))
        moved["median (bucket = 1)"].append(-float(kernels.coordinate_median(votes).mean()))
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    for (label, values), colour in zip(moved.items(), (MALICIOUS, "#e0a030", HONEST), strict=True):
        axes.plot(counts, values, "o-", ms=3.5, color=colour, label=label)
    axes.set(
        xlabel=f"malicious votes among {NUM_CLIENTS}",
        ylabel="pulled towards them\n(honest deviations)",
        xticks=range(0, 21, 2),
    )
    finish(figure, axes, path)


def finish(figure: plt.Figure, axes: plt.Axes, path: Path) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main(directory: Path = HERE) -> None:
    draw_factors(directory / "factors.png")
    draw_median(directory / "median.png")
    draw_course(directory / "course.png")


if __name__ == "__main__":
    main()
