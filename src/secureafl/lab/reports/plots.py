"""Pictures of experiments, as Matplotlib figures without global state. Blue is honest, red is malicious, throughout."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from secureafl.lab.cells.earlier_names import read_result

HONEST, MALICIOUS, INK, FAINT = "#2f6690", "#d1495b", "#222222", "#b8bcc2"
COLOURS = {
    "secureafl": "#111111",
    "secureafl-paper": "#7f5539",
    "asyncsgd": "#9aa0a6",
    "kardam": "#e69f00",
    "basgd": "#56b4e9",
    "sageflow": "#009e73",
    "zenopp": "#cc79a7",
    "aflguard": "#0072b2",
    "asyncdefender": "#d55e00",
    "fedbuff": "#b3a100",
    "asyncfilter": "#6a3d9a",
}
TITLES = {
    "none": "No attack",
    "label_flip": "Label flip",
    "sign_flip": "Sign flip",
    "gaussian": "Gaussian",
    "scaling": "Scaling",
    "dba": "DBA",
    "pgd": "PGD",
    "neurotoxin": "Neurotoxin",
    "threedfed": "3DFed",
    "min_max": "Min-Max",
    "adaptive": "Adaptive",
    "hold": "Hold",
    "apart": "Apart",
    "mimic": "Mimic",
    "imitate": "Imitate",
    "flood": "Flood",
    "whitewash": "Whitewash",
    "secureafl": "SecureAFL",
    "secureafl-paper": "the published algorithm",
    "asyncsgd": "AsyncSGD",
    "kardam": "Kardam",
    "basgd": "BASGD",
    "sageflow": "Sageflow",
    "zenopp": "Zeno++",
    "aflguard": "AFLGuard",
    "asyncdefender": "AsyncDefender-min",
    "fedbuff": "FedBuff, clipped",
    "asyncfilter": "AsyncFilter",
    "I": "I, mean for median",
    "II": "II, no estimates",
    "III": "III, everyone passes",
    "IV": "IV, no one passes",
}
AXES = {
    "ter": "test error rate",
    "asr": "attack success rate",
    "rmse": "RMSE",
    "malicious_fraction": "share of malicious clients",
    "max_delay": "largest delay",
    "num_clients": "number of clients",
    "non_iid": "degree of non-IID",
    "batch_size": "samples per update",
}
MAX_DOTS = 6000


class Picture(Figure):
    """A figure that a notebook shows, also if nothing has imported Matplotlib's `pyplot`."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=100)
        return drawn.getvalue()


@dataclass(frozen=True, slots=True)
class Cell:
    """A finished cell as it lies on disk."""

    result: Mapping[str, Any]
    curves: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    arrivals: Mapping[str, npt.NDArray[Any]]
    """Column by column; empty where the large file was not kept."""

    @property
    def settings(self) -> Mapping[str, Any]:
        return dict(self.result["settings"])

    @property
    def malicious(self) -> npt.NDArray[np.bool_]:
        """Which arrivals came from malicious clients."""
        return np.isin(self.arrivals["client"], np.array(self.result["malicious"], np.int64))


def read_cell(directory: Path) -> Cell:
    """Everything a finished cell left behind."""
    curves = pq.read_table(directory / "curves.parquet").to_pydict()
    metric = np.array(curves["metric"])
    points = {
        name: (np.array(curves["round"])[metric == name], np.array(curves["value"])[metric == name])
        for name in dict.fromkeys(curves["metric"])
    }
    columns: dict[str, npt.NDArray[Any]] = {}
    if (path := directory / "arrivals.parquet").exists():
        arrivals = pq.read_table(path, columns=["client", "accepted", "lipschitz_factor", "norm"])
        columns = {name: arrivals[name].to_numpy() for name in arrivals.column_names}
    return Cell(read_result(directory), points, columns)


def title(name: str) -> str:
    """How a defense, an attack or a row is written; of a row, what stands before the first comma is a name."""
    first, comma, rest = name.partition(",")
    return f"{TITLES.get(first, first.removeprefix('__main__:'))}{comma}{rest}"


def tidy(axes: Axes) -> None:
    """Less ink."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, length=3, labelsize=8)


def draw_cell(cell: Cell) -> Figure:
    """The picture at the end of a run: its curve, its filter, its clients.

    Of a cell whose large file was not kept, the curve alone.
    """
    if cell.arrivals:
        figure = Picture(figsize=(10.0, 6.4), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=[1.0, 1.25])
        plot_curve(figure.add_subplot(grid[0, 0]), cell)
        plot_factors(figure.add_subplot(grid[0, 1]), cell)
        plot_timeline(figure.add_subplot(grid[1, :]), cell)
    else:
        figure = Picture(figsize=(10.0, 3.2), layout="constrained")
        plot_curve(figure.subplots(), cell)
    s = cell.settings
    attack = (
        "no attack" if s["attack"] == "none" else f"{title(s['attack'])} by {len(cell.result['malicious'])} clients"
    )
    figure.suptitle(
        f"{title(s['defense'])} on {s['dataset']}: {s['num_clients']} clients, {attack}", fontsize=12, color=INK
    )
    return figure


def plot_curve(axes: Axes, cell: Cell) -> None:
    """Error, and success of the attack, over rounds."""
    for name, colour in (("ter", HONEST), ("rmse", HONEST), ("asr", MALICIOUS)):
        if name in cell.curves:
            rounds, values = cell.curves[name]
            label = f"{AXES[name]}, {values[-1]:.3f} at the end"
            axes.plot(rounds, values, color=colour, marker="o", markersize=3, linewidth=1.6, label=label)
    if "ter" in cell.curves:
        axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel("round", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=2)
    tidy(axes)


def plot_factors(axes: Axes, cell: Cell) -> None:
    """How abruptly honest and malicious clients changed; lengths of updates where a defense does not ask that."""
    malicious = cell.malicious
    values, name = cell.arrivals["lipschitz_factor"], "Lipschitz factor of an update"
    sides = [rows for rows in (malicious, ~malicious) if rows.any()]
    if not all(np.isfinite(values[rows]).any() for rows in sides):
        values, name = cell.arrivals["norm"], "length of an update"
    usable = np.isfinite(values) & (values > 0.0)
    axes.set_title(f"{name[0].upper()}{name[1:]}", fontsize=9, loc="left")
    axes.set_xlabel(name, fontsize=8)
    tidy(axes)
    if not usable.any():
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, color=FAINT)
        return
    low, high = np.percentile(values[usable], [0.1, 99.9])
    num_bins = int(np.clip(2.0 * np.sqrt(usable.sum()), 12, 50))
    bins = np.geomspace(low / 1.2, high * 1.2, num_bins)
    for rows, colour, label in ((~malicious, HONEST, "honest"), (malicious, MALICIOUS, "malicious")):
        chosen = values[np.isfinite(values) & rows]  # zeros stand at the left edge
        if len(chosen):
            clipped = np.clip(chosen, bins[0], bins[-1])
            weights = np.full(len(chosen), 100.0 / len(chosen))
            axes.hist(
                clipped, bins=list(bins), weights=weights, color=colour, alpha=0.55, label=f"{label} ({len(chosen):,})"
            )
    axes.set_xscale("log")
    axes.set_ylabel("% of updates", fontsize=8)
    axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=8)


def plot_timeline(axes: Axes, cell: Cell) -> None:
    """One dot per arrival: full if accepted, faint if not. Malicious clients stand at the top."""
    attackers = set(cell.result["malicious"])
    num_clients = int(cell.settings["num_clients"])
    order = sorted(range(num_clients), key=lambda client: (client in attackers, client))
    height = np.empty(num_clients)
    height[order] = np.arange(num_clients)
    rounds, malicious, accepted = np.arange(len(cell.malicious)), cell.malicious, cell.arrivals["accepted"].astype(bool)
    shown = rounds % max(1, math.ceil(len(rounds) / MAX_DOTS)) == 0
    size = float(np.clip(9000 / max(1, int(shown.sum())), 2.0, 14.0))
    for kind, colour in ((~malicious, HONEST), (malicious, MALICIOUS)):
        rejected, passed = shown & kind & ~accepted, shown & kind & accepted
        y = height[cell.arrivals["client"]]
        axes.scatter(
            rounds[rejected], y[rejected], s=size, facecolors="none", edgecolors=colour, linewidths=0.5, alpha=0.4
        )
        axes.scatter(rounds[passed], y[passed], s=size, color=colour, linewidths=0.0)
    if attackers:
        axes.axhline(num_clients - len(attackers) - 0.5, color=FAINT, linewidth=0.8)
    axes.set_xlim(-0.01 * len(rounds), 1.01 * len(rounds))
    axes.set_xlabel("round", fontsize=8)
    axes.set_ylabel("client", fontsize=8)
    axes.set_yticks([])
    marks = [
        Line2D([], [], color=HONEST, marker="o", linestyle="", markersize=4, label="honest, accepted"),
        Line2D(
            [], [], color=HONEST, marker="o", linestyle="", markersize=4, fillstyle="none", label="honest, rejected"
        ),
        Line2D([], [], color=MALICIOUS, marker="o", linestyle="", markersize=4, label="malicious, accepted"),
        Line2D(
            [],
            [],
            color=MALICIOUS,
            marker="o",
            linestyle="",
            markersize=4,
            fillstyle="none",
            label="malicious, rejected",
        ),
    ]
    shown_marks = marks if attackers else marks[:2]
    axes.legend(handles=shown_marks, ncols=4, frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_title("Who was accepted", fontsize=9, loc="left")
    tidy(axes)


def save(figure: Figure, path: Path) -> Path:
    """As PDF, and as PNG in 256 colours, which take a third of the bytes and look the same; the PNG's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".pdf"), dpi=150)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(path.with_suffix(".png"), optimize=True)
    return path.with_suffix(".png")


def grid_shape(count: int, most_columns: int = 4) -> tuple[int, int]:
    """Rows and columns for so many panels, the last row as full as the others allow."""
    rows = max(1, math.ceil(count / most_columns))
    return rows, max(1, math.ceil(count / rows))
