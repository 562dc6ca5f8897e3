"""The picture: accuracy over updates, one line per scenario."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import PercentFormatter

from quickstart.scenario import Scenario

NAMES = {"secureafl": "SecureAFL", "asyncsgd": "AsyncSGD"}
INK, SOFT, PALE = "#1b1f24", "#6b7480", "#e3e6ea"
COLOURS = {"secureafl": "#0b6e99", "asyncsgd": "#c8402f"}
OTHERS = ("#8a6d1d", "#5b4b9a", "#2f7d4f", "#7a3b69")
LABEL_GAP = 0.055
"""Least distance between two labels, as a share of the axis."""


class Curve(NamedTuple):
    """Accuracy by version."""

    versions: Sequence[int]
    accuracies: Sequence[float]


def draw(curves: Mapping[Scenario, Curve], path: Path) -> Path:
    """Save the picture and return where it is."""
    figure, axes = plt.subplots(figsize=(8.4, 4.7), layout="constrained")
    is_contrast = any(scenario.attacked for scenario in curves)
    others = itertools.cycle(OTHERS)
    colours: dict[str, str] = {}
    heights = _spread([curve.accuracies[-1] for curve in curves.values()])
    for (scenario, curve), height in zip(curves.items(), heights, strict=True):
        if scenario.defense not in colours:
            colours[scenario.defense] = COLOURS.get(scenario.defense) or next(others)
        colour, last = colours[scenario.defense], (curve.versions[-1], curve.accuracies[-1])
        (line,) = axes.plot(*curve, color=colour, lw=2.6, solid_capstyle="round", zorder=3)
        if not scenario.attacked:
            line.set(lw=1.6, ls=(0, (4, 2)), alpha=0.75, zorder=2)
        remark = ", attacked" if scenario.attacked else ", no attack" if is_contrast else ""
        axes.plot(*last, "o", color=colour, ms=5, zorder=4, clip_on=False)
        axes.annotate(
            f"{_name(scenario)}{remark}  {last[1]:.0%}",
            (last[0], height),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontweight="bold" if scenario.attacked else "normal",
            annotation_clip=False,
        )
    axes.set_title(_finding(curves), loc="left", fontsize=13, fontweight="bold", pad=26, color=INK)
    axes.text(0, 1.035, "Accuracy on the Fashion-MNIST test images", transform=axes.transAxes, color=SOFT)
    axes.set_xlabel("updates received from clients", color=SOFT)
    axes.set_ylim(0, 1)
    axes.set_xlim(0, max(curve.versions[-1] for curve in curves.values()))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color=PALE)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=SOFT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, facecolor="white", bbox_inches="tight", pad_inches=0.25)
    plt.close(figure)
    return path.resolve()


def _name(scenario: Scenario) -> str:
    """The defense as people write it."""
    return NAMES.get(scenario.defense, scenario.defense)


def _finding(curves: Mapping[Scenario, Curve]) -> str:
    """What was measured, in one line."""
    attacked = {scenario: curve for scenario, curve in curves.items() if scenario.attacked}
    ends = {_name(scenario): curve.accuracies[-1] for scenario, curve in (attacked or curves).items()}
    words = ", ".join(
        f"{defense} ends at {ends[defense]:.0%}" for defense in sorted(ends, key=ends.__getitem__, reverse=True)
    )
    return f"Under attack, {words}" if attacked else words


def _spread(heights: Sequence[float]) -> list[float]:
    """The same heights, moved apart so that labels do not overlap."""
    placed = list(heights)
    floor = float("-inf")
    for place in sorted(range(len(heights)), key=heights.__getitem__):
        placed[place] = floor = max(heights[place], floor + LABEL_GAP)
    return placed
