"""The picture: held-out loss and trigger success over updates, one line per scenario."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from secureafl.server import Result
from verses.scenario import Scenario

NAMES = {"secureafl": "SecureAFL", "asyncsgd": "AsyncSGD"}
INK, SOFT, PALE = "#1b1f24", "#6b7480", "#e3e6ea"
COLOURS = {"secureafl": "#0b6e99", "asyncsgd": "#c8402f"}
OTHERS = ("#8a6d1d", "#5b4b9a", "#2f7d4f", "#7a3b69")
LABEL_GAP = 0.075
"""Least distance between two labels, as a share of the axis."""


def draw(results: Mapping[Scenario, Result], path: Path) -> Path:
    """Save the picture and return where it is."""
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8.4, 6.4), sharex=True, layout="constrained")
    _draw_metric(upper, results, "loss", "{:.2f}")
    _draw_metric(lower, results, "trigger", "{:.0%}")
    upper.set_title("Loss per token on held-out chapters", loc="left", fontsize=10, color=SOFT)
    lower.set_title("Prompts after which the attacker's words follow", loc="left", fontsize=10, color=SOFT)
    lower.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    lower.set_xlabel("updates received from clients", color=SOFT)
    figure.suptitle(_finding(results), x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.2)
    plt.close(figure)
    return path.resolve()


def _draw_metric(axes: Axes, results: Mapping[Scenario, Result], metric: str, shown: str) -> None:
    """One line per scenario, each with its name at its end."""
    others, colours = itertools.cycle(OTHERS), dict(COLOURS)
    points = {scenario: result.evaluations for scenario, result in results.items()}
    values = {scenario: [done.metrics[metric] for done in evaluations] for scenario, evaluations in points.items()}
    finite = [value for line in values.values() for value in line if math.isfinite(value)]
    low, high = (
        (0.0, 1.0)
        if metric == "trigger"
        else (min(finite), min(max(finite), 1.1 * max(line[0] for line in values.values())))
    )
    margin = 0.04 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0, max(evaluations[-1].version for evaluations in points.values()))
    heights = _spread([min(line[-1], high) for line in values.values()], LABEL_GAP * (high - low + 2 * margin))
    for (scenario, evaluations), height in zip(points.items(), heights, strict=True):
        colour = colours.setdefault(scenario.defense, next(others))
        style = {"lw": 2.6, "zorder": 3} if scenario.attacked else {"lw": 1.6, "ls": (0, (4, 2)), "zorder": 4}
        axes.plot([done.version for done in evaluations], values[scenario], color=colour, **style)
        axes.annotate(
            f"{NAMES.get(scenario.defense, scenario.defense)}, {'attacked' if scenario.attacked else 'no attack'}  "
            + shown.format(values[scenario][-1]),
            (evaluations[-1].version, height),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold" if scenario.attacked else "normal",
            annotation_clip=False,
        )
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=SOFT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)


def _finding(results: Mapping[Scenario, Result]) -> str:
    """What was measured, in one line."""
    ends = {scenario: result.evaluations[-1].metrics["trigger"] for scenario, result in results.items()}
    attacked = {
        NAMES.get(scenario.defense, scenario.defense): end for scenario, end in ends.items() if scenario.attacked
    }
    if not attacked:
        return "No attack"
    return "The trigger works on " + ", ".join(f"{end:.0%} of prompts with {name}" for name, end in attacked.items())


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """The same heights, moved apart so that labels do not overlap."""
    placed = list(heights)
    floor = float("-inf")
    for place in sorted(range(len(heights)), key=heights.__getitem__):
        placed[place] = floor = max(heights[place], floor + gap)
    return placed
