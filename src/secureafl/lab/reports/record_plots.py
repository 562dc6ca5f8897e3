"""The picture of a run's record, from its tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from secureafl.lab.reports.plots import FAINT, HONEST, INK, MALICIOUS, Picture, tidy

MOST_CLIENTS = 20
"""Bars that fit."""
MEASURES = {
    "lipschitz_factor": "Lipschitz factor of an update",
    "distance": "distance from the server's gradient",
    "norm": "length of an update",
}
"""What arrivals are drawn by: the first that the defense measured, also of those that it rejected."""


def draw_record(arrivals: pa.Table, clients: pa.Table) -> Figure:
    """Left, what each arrival was judged by; right, how often each client was accepted, the least accepted on top."""
    figure = Picture(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2.0, 1.0])
    _plot_arrivals(left, arrivals)
    _plot_clients(right, clients)
    return figure


def _plot_arrivals(axes: Axes, table: pa.Table) -> None:
    measure = next((name for name in MEASURES if _is_told(table, name)), None)
    tidy(axes)
    axes.set_xlabel("update", fontsize=8)
    if measure is None:
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color=FAINT)
        return
    x, values = table["update"].to_numpy(), table[measure].to_numpy()
    accepted = table["accepted"].to_numpy().astype(bool)
    drawable = np.isfinite(values) & (values > 0.0)
    axes.scatter(x[drawable & accepted], values[drawable & accepted], s=8, color=HONEST, label="accepted")
    axes.scatter(
        x[drawable & ~accepted], values[drawable & ~accepted], s=14, marker="x", color=MALICIOUS, label="rejected"
    )
    if measure == "lipschitz_factor" and "threshold" in table.column_names:
        axes.plot(x, table["threshold"].to_numpy(), color=INK, linewidth=1.0, linestyle="--", label="threshold")
    axes.set_yscale("log")
    axes.set_ylabel(MEASURES[measure], fontsize=8)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0))


def _is_told(table: pa.Table, measure: str) -> bool:
    """Whether most arrivals have this measure, and most of the rejected ones: some are rejected before it is taken."""
    if measure not in table.column_names:
        return False
    known = np.isfinite(table[measure].to_numpy())
    rejected = ~table["accepted"].to_numpy().astype(bool)
    return bool(known.any()) and (not rejected.any() or float(known[rejected].mean()) > 0.5)


def _plot_clients(axes: Axes, table: pa.Table) -> None:
    shown = table.slice(0, MOST_CLIENTS)
    names, shares = shown["client"].to_pylist(), shown["share_accepted"].to_numpy()
    places = np.arange(len(names))
    axes.barh(places, np.ones(len(names)), color=MALICIOUS, alpha=0.25)
    axes.barh(places, shares, color=HONEST)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    title = "Share of updates accepted, by client"
    axes.set_title(
        title if len(table) <= MOST_CLIENTS else f"{title}: the lowest {MOST_CLIENTS}", fontsize=9, loc="left"
    )
    tidy(axes)
