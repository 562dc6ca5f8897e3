"""Twelve hospitals on NVIDIA FLARE: whose patients does the model follow?

    python run.py [--updates 600] [--out runs/hospitals] [--only "weighted average" SecureAFL]

Three jobs in NVFlare's simulator, one after the other: plain weighted averaging; SecureAFL's default with the same
weights; and that again with every diagnosis right. Says how well each model does and how far it follows the smallest
hospital, and writes that as found.json, with a picture, influence.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from hospitals.task import SIZES, TOTAL, WRONG, accuracy, site_name, weights
from matplotlib.figure import Figure
from safetensors.numpy import load_file

HERE = Path(__file__).parent
PLAIN, OURS, WITHOUT = "weighted average", "SecureAFL", f"SecureAFL, {WRONG} right"
JOBS = {
    PLAIN: ("hospitals.weighted_average:WeightedAverage", True),
    OURS: ("secureafl", True),
    WITHOUT: ("secureafl", False),
}
TINY = site_name(len(SIZES) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=600, help="end each job after so many updates")
    parser.add_argument("--out", type=Path, default=Path("runs/hospitals"), help="where records and the picture go")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB", help="run only these")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.job:
        simulate(chosen.job, chosen.updates, chosen.out)
        return
    found = {}
    for name in chosen.only:
        place = (chosen.out / name.replace(" ", "-").replace(",", "")).resolve()
        command = [sys.executable, __file__, "--job", name, "--updates", str(chosen.updates), "--out", str(place)]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
        if done.returncode or not (place / "model.safetensors").exists():
            sys.exit(f"{name}: the job failed.\n{done.stdout}{done.stderr}")
        found[name] = read(place)
        shares, right = found[name]
        print(f"{name}: accuracy {right:.3f}; {TINY} counts {times(shares, TINY):.2f} times its weight", flush=True)
    told = {name: {"accuracy": right, "shares": shares} for name, (shares, right) in found.items()}
    patients = {site_name(number): size for number, size in enumerate(SIZES)}
    (chosen.out / "found.json").write_text(json.dumps({"patients": patients, "results": told}, indent=1) + "\n")
    picture = chosen.out / "influence.png"
    draw({name: shares for name, (shares, _) in found.items() if name != WITHOUT}).savefig(picture, dpi=160)
    print(f"Picture: {picture}")


def simulate(name: str, num_updates: int, place: Path) -> None:
    """One job, in a process of its own."""
    from nvflare.recipe import SimEnv

    from secureafl.engines.nvflare import AsyncClient, AsyncServer, federation_recipe

    defense, is_wrong = JOBS[name]
    chosen: dict[str, object] = {"weights": weights()}
    if defense == "secureafl":
        chosen["tolerance"] = 6.0  # steps of eight patients are noisy
        chosen["full_vote_after"] = 1  # no newcomers: the consortium has agreed on who takes part,
        chosen["vouched"] = list(weights())  # and knows them, so that hospitals may ask for much the same
    settings = {
        "defense": defense,
        "defense_settings": chosen,
        "server_lr": 0.5,
        "run_dir": str(place),
        "stop_after_updates": num_updates,
        "evaluate_every": max(1, num_updates // 20),
        "snapshot_every": max(1, num_updates // 40),
        "keep_snapshots": 40,
    }
    recipe = federation_recipe(
        "hospitals",
        AsyncServer(
            "hospitals.task:initial_model",
            settings,
            evaluate="hospitals.task:accuracy",
            train_config={"lr": 0.1, "local-steps": 5, "seconds-per-patient": 0.01, "wrong": is_wrong},
        ),
        AsyncClient("hospitals.task:train"),
        files=[HERE / "hospitals"],
        min_clients=len(SIZES),
    )
    recipe.execute(SimEnv(num_clients=len(SIZES), num_threads=len(SIZES), workspace_root=str(place.parent / "nvflare")))


def read(place: Path) -> tuple[dict[str, float], float]:
    """Each hospital's share in the steps of the model, and the accuracy at the end.

    SecureAFL tells the shares of votes at each snapshot. Without votes, a step is its sender's alone, times its weight.
    """
    from secureafl import lab

    record = lab.RunRecord(place)
    shares = {row["client"]: row["influence"] or 0.0 for row in record.clients().to_pylist()}
    if not any(shares.values()):
        rows = record.arrivals().to_pylist()
        moved = sum(row["weight"] for row in rows)
        shares = {name: sum(row["weight"] for row in rows if row["client"] == name) / moved for name in shares}
    return shares, accuracy(load_file(place / "model.safetensors"))["accuracy"]


def times(shares: dict[str, float], site: str) -> float:
    """A hospital's share in the model over its share of patients."""
    number = int(site.rpartition("-")[2]) - 1
    return shares.get(site, 0.0) / (SIZES[number] / TOTAL)


def draw(found: dict[str, dict[str, float]]) -> Figure:
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    sites = [site_name(number) for number in range(len(SIZES))]
    for place, (name, shares) in enumerate(found.items()):
        at = [number + 0.4 * place - 0.2 for number in range(len(sites))]
        axes.bar(
            at, [times(shares, site) for site in sites], width=0.38, label=name, color=("#c8402f", "#0b6e99")[place]
        )
    axes.axhline(1.0, color="#59636e", linewidth=1)
    axes.text(-1.75, 1.03, "its weight", va="bottom", color="#59636e", fontsize=9)
    axes.set_xlim(-1.8, len(sites) - 0.4)
    axes.set_xticks(
        range(len(sites)),
        [f"{size}" + ("\nwrong" if site == WRONG else "") for site, size in zip(sites, SIZES, strict=True)],
    )
    axes.set_xlabel("patients of the hospital")
    axes.set_ylabel("share in the model,\ntimes its weight")
    axes.set_title("How much each hospital moves the model", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
