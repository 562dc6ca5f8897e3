"""Fifty clients learn Fashion-MNIST, ten of them malicious: run it with and without a defense, and draw what happened.

Each scenario is one `secureafl lab run` in a process of its own; what was run before is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.reports.plots import Cell, read_cell

ATTACKED, UNDEFENDED, CALM = "SecureAFL, attacked", "AsyncSGD, attacked", "SecureAFL, no attack"
NUM_TEST = 2000
SCENARIOS = {UNDEFENDED: ("asyncsgd", "scaling"), ATTACKED: ("secureafl", "scaling"), CALM: ("secureafl", "none")}


@dataclass(frozen=True)
class Theme:
    """Colours for one background."""

    paper: str
    ink: str
    soft: str
    line: str
    honest: str
    malicious: str


THEMES = {
    "light": Theme("#ffffff", "#1b1f24", "#59636e", "#d8dee4", "#0b6e99", "#c8402f"),
    "dark": Theme("#0d1117", "#e6edf3", "#9198a1", "#30363d", "#58b6e0", "#ff7b6b"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="arrivals per scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs/stop-an-attack"), help="where results are kept")
    parser.add_argument("--pictures", type=Path, default=Path(), help="folder for the pictures")
    options = parser.parse_args()
    cells = {}
    for name, (defense, attack) in SCENARIOS.items():
        cells[name] = run(defense, attack, options.rounds, options.seed, options.runs)
        print(f"{name}: {accuracy(cells[name])[1][-1]:.1%} of the test images are recognised at the end")
    options.pictures.mkdir(parents=True, exist_ok=True)
    for theme_name, theme in THEMES.items():
        path = options.pictures / f"attack-{theme_name}.png"
        draw(cells, theme).savefig(path, dpi=160, facecolor=theme.paper)
        print(f"Picture: {path}")


def run(defense: str, attack: str, rounds: int, seed: int, out: Path) -> Cell:
    """One cell of the laboratory."""
    every = max(25, rounds // 40)
    settings = CellSettings(
        defense=defense, attack=attack, rounds=rounds, seed=seed, evaluate_every=every, num_test=NUM_TEST
    )
    directory = out / "cells" / settings.cell_id()
    if not (directory / "result.json").exists():
        command = ["lab", "run", "--defense", defense, "--attack", attack, "--rounds", str(rounds), "--seed", str(seed)]
        command += ["--set", f"evaluate_every={every}", "--set", f"num_test={NUM_TEST}", "--out", str(out)]
        print("$ secureafl", *command, flush=True)
        subprocess.run([Path(sys.executable).with_name("secureafl"), *command], check=True)
    return read_cell(directory)


def accuracy(cell: Cell) -> tuple[list[int], list[float]]:
    """Arrivals, and the accuracy then of the model that the server publishes, the average of its last versions."""
    rounds, errors = cell.curves["published_ter"]
    return list(rounds), list(1.0 - errors)


def draw(cells: dict[str, Cell], theme: Theme) -> Figure:
    """Accuracy above, who was accepted below, one axis of arrivals for both."""
    figure = Figure(figsize=(9.0, 5.9))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.0, 1.05])
    figure.subplots_adjust(left=0.07, right=0.765, top=0.875, bottom=0.085, hspace=0.26)
    draw_accuracy(upper, cells, theme)
    draw_arrivals(lower, cells[ATTACKED], theme)
    rounds = int(cells[ATTACKED].settings["rounds"])
    lower.set_xlim(0, rounds)
    lower.set_xlabel("updates received", color=theme.soft)
    for axes in (upper, lower):
        axes.set_facecolor(theme.paper)
        axes.tick_params(length=0, colors=theme.soft, labelsize=9)
        axes.spines[:].set_visible(False)
    ends = {name: accuracy(cell)[1][-1] for name, cell in cells.items()}
    figure.text(
        0.015,
        0.952,
        f"One client in five is malicious: {ends[ATTACKED]:.0%} with SecureAFL, {ends[UNDEFENDED]:.0%} without",
        color=theme.ink,
        fontsize=14,
        fontweight="bold",
    )
    return figure


def draw_accuracy(axes: Axes, cells: dict[str, Cell], theme: Theme) -> None:
    """One line per scenario, each with its name at its end."""
    style = {
        UNDEFENDED: {"color": theme.malicious, "linewidth": 2.2},
        ATTACKED: {"color": theme.honest, "linewidth": 2.6},
        CALM: {"color": theme.honest, "linewidth": 1.4, "linestyle": (0, (4, 2))},
    }
    heights = {name: accuracy(cell)[1][-1] for name, cell in cells.items()}
    if abs(heights[CALM] - heights[ATTACKED]) < 0.1:
        upper = max((CALM, ATTACKED), key=heights.__getitem__)
        middle = (heights[CALM] + heights[ATTACKED]) / 2
        heights.update({name: middle + (0.055 if name == upper else -0.055) for name in (CALM, ATTACKED)})
    for name, cell in cells.items():
        rounds, values = accuracy(cell)
        axes.plot(rounds, values, solid_capstyle="round", zorder=3, **style[name])  # type: ignore[arg-type]
        axes.annotate(
            f"{name}  {values[-1]:.0%}",
            (rounds[-1], heights[name]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=style[name]["color"],
            fontsize=9,
            fontweight="normal" if name == CALM else "bold",
            annotation_clip=False,
        )
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"])
    axes.grid(axis="y", color=theme.line, linewidth=0.8)
    axes.set_title(
        f"Accuracy of the published model on {NUM_TEST:,} test images of Fashion-MNIST",
        loc="left",
        fontsize=10,
        color=theme.soft,
        pad=8,
    )


def draw_arrivals(axes: Axes, cell: Cell, theme: Theme) -> None:
    """One mark per update, one row per client: dots were accepted, crosses rejected. Malicious rows are on top."""
    malicious, num_clients = set(cell.result["malicious"]), int(cell.settings["num_clients"])
    order = sorted(range(num_clients), key=lambda client: (client in malicious, client))
    row = np.empty(num_clients)
    row[order] = np.arange(num_clients) + np.array([2.5 if client in malicious else 0.0 for client in order])
    arrivals, heights = np.arange(len(cell.malicious)), row[cell.arrivals["client"]]
    accepted = cell.arrivals["accepted"].astype(bool)
    for kind, colour in ((~cell.malicious, theme.honest), (cell.malicious, theme.malicious)):
        yes, no = kind & accepted, kind & ~accepted
        axes.scatter(arrivals[yes], heights[yes], s=7, color=colour, linewidths=0, alpha=0.8)
        axes.scatter(arrivals[no], heights[no], s=13, marker="x", color=colour, linewidths=0.9)
    shares = [float(np.mean(accepted[kind])) for kind in (~cell.malicious, cell.malicious)]
    num_honest = num_clients - len(malicious)
    for height, colour, text in (
        (num_honest / 2, theme.honest, f"{num_honest} honest clients\n{shares[0]:.0%} accepted (dots)"),
        (
            num_honest + 2.5 + len(malicious) / 2,
            theme.malicious,
            f"{len(malicious)} malicious clients\n{1 - shares[1]:.0%} rejected (crosses)",
        ),
    ):
        axes.annotate(
            text,
            (arrivals[-1], height),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
        )
    axes.set_yticks([])
    axes.set_ylim(-1.5, num_clients + 3)
    axes.set_title(
        "Every update that SecureAFL judged, one row per client", loc="left", fontsize=10, color=theme.soft, pad=8
    )


if __name__ == "__main__":
    main()
