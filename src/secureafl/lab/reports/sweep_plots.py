"""Pictures of a whole sweep: curves, heat map, filters, and a setting against the error."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secureafl.lab.reports.plots import (
    AXES,
    COLOURS,
    FAINT,
    INK,
    Cell,
    Picture,
    grid_shape,
    plot_factors,
    plot_timeline,
    tidy,
    title,
)
from secureafl.lab.reports.tables import FAIRNESS, fairness_of, published
from secureafl.lab.sweeps.naming import in_order, method_of, row_of
from secureafl.lab.sweeps.recipe import Recipe

LINE_CYCLE = ("#2f6690", "#d1495b", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#9aa0a6")
WIDE = 10.0
"""From this ratio of the largest to the smallest on, a setting is drawn on a logarithmic axis."""
LEGEND_MARK, LEGEND_LETTER = 0.55, 0.065
"""Inches that a legend takes for a line beside its name, and for each letter of it."""


def main_metric(cells: Sequence[Cell]) -> str:
    """What the sweep's task is judged by."""
    return "rmse" if any("rmse" in cell.result["last"] for cell in cells) else "ter"


def draw_curves(cells: Sequence[Cell], recipe: Recipe) -> Figure:
    """The error over rounds: one panel per attack, one line per row of the table, averaged over seeds."""
    groups, metric = by_attack(cells), main_metric(cells)
    rows, columns = grid_shape(len(groups))
    figure = Picture(figsize=(3.0 * columns + 0.6, 2.3 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel().tolist()
    colours = row_colours([row_of(recipe, cell.settings) for cell in cells])
    for axes, (attack, members) in zip(panels, groups.items(), strict=False):
        for row in dict.fromkeys(row_of(recipe, cell.settings) for cell in members):
            curves = [cell.curves[f"published_{metric}"] for cell in members if row_of(recipe, cell.settings) == row]
            width = 2.2 if row == "secureafl" else 1.3
            axes.plot(
                curves[0][0], mean_of([y for _, y in curves]), color=colours[row], linewidth=width, label=title(row)
            )
        axes.set_title(title(attack), fontsize=9, loc="left")
        if metric == "ter":
            axes.set_ylim(0.0, 1.0)
        tidy(axes)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(AXES[metric], fontsize=8)
    figure.supxlabel("round", fontsize=8)
    shared_legend(figure, panels)
    return figure


def draw_overlay(cells: Sequence[Cell], labels: Sequence[str]) -> Figure:
    """The error of every cell over rounds in one panel; dashed, the success of backdoors."""
    metric = main_metric(cells)
    figure = Picture(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots()
    methods = [cell.settings["defense"] for cell in cells]
    own = row_colours(methods if len(set(methods)) == len(cells) else [str(place) for place in range(len(cells))])
    for cell, label, colour in zip(cells, labels, own.values(), strict=True):
        axes.plot(*cell.curves[f"published_{metric}"], color=colour, linewidth=1.8, label=label)
        if "published_asr" in cell.curves:
            axes.plot(*cell.curves["published_asr"], color=colour, linewidth=1.2, linestyle="--")
    has_backdoor = any("published_asr" in cell.curves for cell in cells)
    axes.set_ylabel(AXES[metric] + (" (dashed: attack success rate)" if has_backdoor else ""), fontsize=8)
    axes.set_xlabel("round", fontsize=8)
    if metric == "ter":
        axes.set_ylim(0.0, 1.0)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)
    return figure


def draw_heat_map(cells: Sequence[Cell], recipe: Recipe) -> Figure:
    """Every row against every attack: error, and beside it the success of backdoors."""
    metric = main_metric(cells)
    names = [metric] + (["asr"] if any("asr" in cell.result["last"] for cell in cells) else [])
    rows = list(dict.fromkeys(row_of(recipe, cell.settings) for cell in cells))
    grids = {name: _grid(cells, recipe, rows, name) for name in names}
    widths = [max(3, len(attacks)) for attacks, _ in grids.values()]  # a title needs some room, too
    figure = Picture(figsize=(0.62 * sum(widths) + 2.6, 0.42 * len(rows) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(names), width_ratios=widths, squeeze=False).ravel().tolist()
    for place, (axes, (name, (attacks, values))) in enumerate(zip(panels, grids.items(), strict=True)):
        _paint(axes, values, is_rate=name != "rmse")
        axes.set_xticks(range(len(attacks)), [title(attack) for attack in attacks], rotation=40, ha="right")
        axes.set_yticks(range(len(rows)), [title(row) for row in rows] if place == 0 else [""] * len(rows))
        axes.set_title(AXES[name].capitalize() if name != "rmse" else "RMSE", fontsize=9, loc="left")
    return figure


def draw_filters(cells: Sequence[Cell], name: str) -> Figure:
    """Lipschitz factors, honest against malicious, under each attack; `name` is who measured them."""
    chosen = [members[0] for members in by_attack(cells).values()]
    rows, columns = grid_shape(len(chosen))
    figure = Picture(figsize=(3.1 * columns + 0.4, 2.3 * rows + 0.5), layout="constrained")
    figure.suptitle(name, fontsize=10, x=0.01, ha="left")
    panels = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes, cell in zip(panels, chosen, strict=False):
        plot_factors(axes, cell)
        axes.set_title(title(cell.settings["attack"]), fontsize=9, loc="left")
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    return figure


def draw_timeline(cell: Cell, name: str) -> Figure:
    """One cell's arrivals, client by client; `name` is who judged them."""
    figure = Picture(figsize=(10.0, 4.2), layout="constrained")
    axes = figure.subplots()
    plot_timeline(axes, cell)
    axes.set_title(f"{name}, {title(cell.settings['attack'])}", fontsize=9, loc="left")
    return figure


def draw_lines(cells: Sequence[Cell], recipe: Recipe) -> Figure:
    """A setting along x, the error along y: one panel per attack, one line per method, a small dot for each seed."""
    groups, metric = by_attack(cells), main_metric(cells)
    colours = row_colours([method_of(cell.settings) for cell in cells])
    rows, columns = grid_shape(len(groups))
    figure = Picture(figsize=(3.0 * columns + 0.6, 2.3 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for axes, (attack, members) in zip(panels, groups.items(), strict=False):
        for method in dict.fromkeys(method_of(cell.settings) for cell in members):
            points: dict[float, list[float]] = {}
            for cell in members:
                if method_of(cell.settings) == method:
                    points.setdefault(float(row_of(recipe, cell.settings)), []).append(published(cell.result, metric))
            x = sorted(points)
            axes.plot(
                x,
                [np.mean(points[value]) for value in x],
                color=colours[method],
                linewidth=2.2 if method == "secureafl" else 1.3,
                marker="o",
                markersize=3,
                label=title(method),
            )
            seeds = [(value, error) for value in x for error in points[value]]
            axes.plot(*zip(*seeds, strict=True), ".", color=colours[method], markersize=3, alpha=0.5)
        axes.set_title(title(attack), fontsize=9, loc="left")
        if metric == "ter":
            axes.set_ylim(0.0, 1.0)
        tidy(axes)
    run = sorted({float(row_of(recipe, cell.settings)) for cell in cells})
    if 0.0 < run[0] * WIDE <= run[-1]:
        panels[0].set_xscale("log")
        panels[0].minorticks_off()
    panels[0].set_xticks(run, [f"{value:,g}" for value in run])  # no others were run
    for axes in panels[max(0, len(groups) - columns) : len(groups)]:  # each column's lowest, also beside a gap
        axes.tick_params(labelbottom=True)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(AXES[metric], fontsize=8)
    figure.supxlabel(AXES.get(recipe.row, recipe.row), fontsize=8)
    shared_legend(figure, panels)
    return figure


def draw_fairness(cells: Sequence[Cell], recipe: Recipe) -> Figure:
    """Who is left behind: a panel for each measure, a row for each method, a dot for each attack, seeds averaged."""
    rows = list(dict.fromkeys(row_of(recipe, cell.settings) for cell in cells))
    attacks = in_order(cell.settings["attack"] for cell in cells)
    colours = dict(zip(attacks, itertools.cycle((INK, *LINE_CYCLE)), strict=False))
    figure = Picture(figsize=(2.3 * len(FAIRNESS) + 2.0, 0.34 * len(rows) + 1.9), layout="constrained")
    panels = figure.subplots(1, len(FAIRNESS), sharey=True, squeeze=False).ravel().tolist()
    for axes, (measure, words) in zip(panels, FAIRNESS.items(), strict=True):
        for attack in attacks:
            for place, row in enumerate(rows):
                found = [
                    value
                    for cell in cells
                    if cell.settings["attack"] == attack and row_of(recipe, cell.settings) == row
                    if (value := fairness_of(cell.result, measure)) is not None
                ]
                if found:
                    hollow = "none" if attack != "none" else colours[attack]
                    axes.plot(
                        np.mean(found), place, "o", color=colours[attack], markerfacecolor=hollow, label=title(attack)
                    )
        axes.set_title("\n".join(textwrap.wrap(words, 22)), fontsize=8, loc="left")
        axes.set_xlim(-0.03, max(1.03, axes.get_xlim()[1]))
        tidy(axes)
    panels[0].set_yticks(range(len(rows)), [title(row) for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    shared_legend(figure, panels)
    return figure


def draw_errors(cells: Sequence[Cell], recipe: Recipe) -> Figure:
    """How far estimates are from true gradients over rounds, beside the bare last updates."""
    figure = Picture(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for cell, colour in zip(cells, LINE_CYCLE, strict=False):
        if "estimation_error" in cell.curves:
            label = row_of(recipe, cell.settings)
            axes.plot(*cell.curves["estimation_error"], color=colour, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("round", fontsize=8)
    axes.set_ylabel("relative error of estimates", fontsize=8)
    axes.legend(frameon=False, fontsize=8, title="correction", title_fontsize=8)
    tidy(axes)
    return figure


def by_attack(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells grouped by attack, in the order of the paper's tables."""
    attacks = in_order(cell.settings["attack"] for cell in cells)
    return {attack: [cell for cell in cells if cell.settings["attack"] == attack] for attack in attacks}


def row_colours(rows: Sequence[str]) -> dict[str, str]:
    """A colour for each row: a defense's own, or the next of the cycle."""
    unique = list(dict.fromkeys(rows))
    return {row: COLOURS.get(row, LINE_CYCLE[place % len(LINE_CYCLE)]) for place, row in enumerate(unique)}


def mean_of(curves: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    shortest = min(len(curve) for curve in curves)
    return np.asarray(np.mean([curve[:shortest] for curve in curves], axis=0))


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, above them, in as many columns as the longest name leaves room for."""
    found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    fitting = int(figure.get_figwidth() / (LEGEND_MARK + LEGEND_LETTER * max(map(len, found), default=0)))
    columns = max(1, min(8, fitting, len(found)))
    figure.legend(list(found.values()), list(found), loc="outside upper left", ncols=columns, frameon=False, fontsize=8)


def _grid(
    cells: Sequence[Cell], recipe: Recipe, rows: Sequence[str], metric: str
) -> tuple[list[str], npt.NDArray[Any]]:
    """Attacks that have this metric, and (rows, attacks) means over seeds, NaN where there is no cell."""
    with_metric = [cell for cell in cells if metric in cell.result["last"]]
    attacks = in_order(cell.settings["attack"] for cell in with_metric)
    values = np.full((len(rows), len(attacks)), np.nan)
    for i, row in enumerate(rows):
        for j, attack in enumerate(attacks):
            found = [
                published(cell.result, metric)
                for cell in with_metric
                if cell.settings["attack"] == attack and row_of(recipe, cell.settings) == row
            ]
            values[i, j] = np.mean(found) if found else np.nan
    return attacks, values


def _paint(axes: Axes, values: npt.NDArray[Any], *, is_rate: bool) -> None:
    """Rates are coloured from 0 to 1, an RMSE from the best to the worst that is finite."""
    finite = values[np.isfinite(values)]
    low, high = (0.0, 1.0) if is_rate or not len(finite) else (float(finite.min()), float(finite.max()))
    axes.imshow(np.ma.masked_invalid(values), cmap="YlOrRd", vmin=low, vmax=high, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if low + 0.62 * (high - low) < value < np.inf else INK
            text = f"{value:.2f}" if is_rate else f"{value:.3f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(values.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(values.shape[0] + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.set_facecolor(FAINT)
