"""The soak as a picture: what processes took, what was kept, how fast it was, and what was learned, over the days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.end_to_end.soak_clients import DAY, Plan

Columns = Mapping[str, Sequence[float | None]]

PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "resident memory, MB",
        "linear",
        {
            "leader: resident memory (MB)": "leader",
            "standby: resident memory (MB)": "standby",
            "postgres: resident memory (MB)": "PostgreSQL",
            "postgres: shared memory in use (MB)": "PostgreSQL, shared",
        },
    ),
    (
        "open files, threads",
        "linear",
        {f"{role}: {what}": f"{role}, {what}" for role in ("leader", "standby") for what in ("open files", "threads")},
    ),
    (
        "disk, MB",
        "linear",
        {"disk (MB)": "tables", "snapshots kept (MB)": "of these snapshots", "updates kept (MB)": "of these updates"},
    ),
    ("from update to next model, s", "log", {f"latency {name} (s)": name for name in ("p50", "p99", "max")}),
    ("distance from the optimum", "log", {"distance": "newest model"}),
)


def draw(plan: Plan, columns: Columns, disturbed_at: Sequence[float], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure((10.4, 11.0), layout="constrained")
    days = [(hour or 0.0) / DAY for hour in columns["hour"]]
    for axes, (label, scale, lines) in zip(figure.subplots(len(PANELS), 1, sharex=True), PANELS, strict=True):
        for attack in plan.attacks:
            axes.axvspan(attack.begins / DAY, attack.ends / DAY, color="tab:red", alpha=0.1, linewidth=0)
        for hour in disturbed_at:
            axes.axvline(hour / DAY, color="grey", linewidth=0.8, linestyle=":")
        for name, shown in lines.items():
            if name in columns:
                values = [float("nan") if value is None else value for value in columns[name]]
                axes.plot(days, values, label=shown, linewidth=1.2)
        axes.set(ylabel=label, yscale=scale)
        if scale == "linear":
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    for attack in plan.attacks:
        figure.axes[0].annotate(
            attack.sends,
            ((attack.begins + attack.ends) / 2 / DAY, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize="small",
        )
    figure.axes[-1].set(
        xlabel="virtual days (red: attacks; dotted: a leader or a standby is killed, stopped or cut off)"
    )
    figure.savefig(path, dpi=110)
