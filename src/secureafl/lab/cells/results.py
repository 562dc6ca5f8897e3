"""What a finished cell leaves behind, and how it is read back."""

from __future__ import annotations

import hashlib
import math
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from secureafl import __version__
from secureafl.files import save_json, write_atomically
from secureafl.lab.cells import scores
from secureafl.lab.cells.build import Laboratory
from secureafl.lab.cells.earlier_names import RESULT
from secureafl.lab.simulation.private_clients import DELTA, PrivateClients
from secureafl.lab.simulation.regions import Regions, influence_of

NUM_LAST = 5
"""Evaluations averaged at the end: single ones swing."""


@dataclass(frozen=True, slots=True)
class CellEvaluation:
    """How the model of one round did."""

    round: int
    metrics: Mapping[str, float]


def finish(
    lab: Laboratory,
    evaluations: Sequence[CellEvaluation],
    directory: Path,
    *,
    resumed_at: int,
    origin: Mapping[str, str],
) -> None:
    """Write curves and arrivals, then the result: its presence says that the cell is finished."""
    save_table(directory / "curves.parquet", curves_table(lab.settings.cell_id(), evaluations))
    save_table(directory / "arrivals.parquet", arrivals_table(lab))
    save_json(directory / RESULT, plain(summary(lab, evaluations, resumed_at, origin)))


def summary(
    lab: Laboratory, evaluations: Sequence[CellEvaluation], resumed_at: int, origin: Mapping[str, str]
) -> dict[str, Any]:
    """Everything about a run that fits on a page. Only `timing` and `provenance` differ between equal runs."""
    simulation, machine = lab.simulation, lab.simulation.machine
    columns = simulation.trace.columns()
    malicious = np.isin(columns["client"], np.array(sorted(lab.malicious), np.int64))
    if lab.settings.attack == "none":
        malicious = np.zeros_like(malicious)
    code = lab.settings.code()
    return {
        "cell": lab.settings.cell_id(),
        "settings": lab.settings.complete(),
        **({"code": code} if code else {}),
        "final": dict(evaluations[-1].metrics),
        "last": last_mean(evaluations),
        "held_class": lab.settings.held_class,
        "worst_class": worst_classes(last_mean(evaluations)),
        "detection": detection_summary(columns, malicious, lab.settings.num_clients),
        "fairness": fairness(lab, columns),
        **({} if simulation.private is None else {"privacy": privacy_summary(simulation.private, columns, malicious)}),
        **({"regions": regions_summary(lab, machine)} if isinstance(machine, Regions) else {}),
        "reasons": count_reasons(simulation.trace.reasons, columns, malicious),
        "lipschitz": {
            "honest": factor_percentiles(columns["lipschitz_factor"][~malicious]),
            "malicious": factor_percentiles(columns["lipschitz_factor"][malicious]),
        },
        "malicious": sorted(int(client) for client in lab.malicious) if lab.settings.attack != "none" else [],
        "digests": {
            "model": hashlib.sha256(simulation.machine.model.params.astype("<f4").tobytes()).hexdigest(),
            "arrivals": simulation.trace.arrivals_sha256(),
        },
        "num_names": simulation.machine.num_clients,
        "server_bytes": sum(array.nbytes for array in simulation.machine.state_dict().values()),
        "dim": lab.task.dim,
        "timing": timing(lab, resumed_at),
        "provenance": dict(origin),
    }


def privacy_summary(
    private: PrivateClients, columns: Mapping[str, npt.NDArray[Any]], malicious: npt.NDArray[Any]
) -> dict[str, float]:
    """How much noise honest clients added, and what the updates of the one that sent most give away all the same."""
    senders = columns["client"][~malicious].tolist()
    return {"noise_multiplier": private.noise_multiplier, "epsilon": private.given_away(senders), "delta": DELTA}


def last_mean(evaluations: Sequence[CellEvaluation]) -> dict[str, float]:
    """The mean of the last five evaluations, metric by metric; the untrained model does not count."""
    last = [evaluation.metrics for evaluation in evaluations if evaluation.round > 0][-NUM_LAST:]
    return {name: float(np.mean([metrics[name] for metrics in last])) for name in last[-1]}


def worst_classes(metrics: Mapping[str, float]) -> dict[str, int]:
    """The class that the newest and the published model recognise least; empty for a regression."""
    found = {}
    for model, prefix in (("newest", "recall_"), ("published", "published_recall_")):
        recalls = {
            int(name.removeprefix(prefix)): value
            for name, value in metrics.items()
            if name.startswith(prefix) and not math.isnan(value)
        }
        if recalls:
            found[model] = min(recalls, key=lambda label: recalls[label])
    return found


def detection_summary(
    columns: Mapping[str, npt.NDArray[Any]], malicious: npt.NDArray[Any], num_clients: int
) -> dict[str, Any]:
    """How well rejection told malicious from honest updates, and how often each client was accepted."""
    accepted, clients = columns["accepted"], columns["client"]
    found = scores.detection(accepted, malicious)
    return {
        "num_honest": int(np.sum(~malicious)),
        "num_malicious": int(np.sum(malicious)),
        "precision": found.precision,
        "recall": found.recall,
        "honest_accepted": share(accepted[~malicious]),
        "malicious_accepted": share(accepted[malicious]),
        "acceptance_by_client": scores.acceptance_by_client(clients, accepted, num_clients).tolist(),
    }


def fairness(lab: Laboratory, columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, float | None]:
    """Who is left behind: of honest clients, the one and the group that were accepted least, and the lowest vote.

    A group are those who hold most of one class. Votes are in units of an equal share; None where the defense cannot
    tell how far the model follows whom.
    """
    n, attacked = lab.settings.num_clients, lab.settings.attack != "none"
    accepted = scores.acceptance_by_client(columns["client"], columns["accepted"], n)
    honest = [client for client in range(n) if not (attacked and client in lab.malicious)]
    groups: dict[int, list[float]] = {}
    for client in honest:
        if not math.isnan(accepted[client]):
            groups.setdefault(main_class(lab, client), []).append(accepted[client])
    found: dict[str, float | None] = {
        "worst_honest_accepted": min((share for shares in groups.values() for share in shares), default=math.nan),
        "worst_group_accepted": min((float(np.mean(shares)) for shares in groups.values()), default=math.nan),
        "lowest_honest_vote": None,
        "malicious_votes": None,
    }
    shares = influence_of(lab.simulation.machine)
    if shares:
        votes = {int(client): share for client, share in shares.items()}
        of_honest = [votes.get(client, 0.0) for client in honest]
        found["lowest_honest_vote"] = min(of_honest) * n
        found["malicious_votes"] = sum(votes.values()) - sum(of_honest)  # also of names they took later
    return found


def regions_summary(lab: Laboratory, regions: Regions) -> dict[str, Any]:
    """What the top made of each region's reports, and how many of its clients attack."""
    columns, num_regions = cast(dict[str, npt.NDArray[Any]], regions.reports.columns()), len(regions.regions)
    attacked = lab.settings.attack != "none"
    malicious = [regions.region_of(client) for client in lab.malicious] if attacked else []
    return {
        "num_reports": len(regions.reports),
        "malicious_by_region": [malicious.count(place) for place in range(num_regions)],
        "acceptance_by_region": scores.acceptance_by_client(
            columns["client"], columns["accepted"], num_regions
        ).tolist(),
        "reasons": {
            reason: int(np.sum(columns["reason"] == place)) for place, reason in enumerate(regions.reports.reasons)
        },
    }


def main_class(lab: Laboratory, client: int) -> int:
    """The class that the client holds most of; 0 for all in a regression."""
    if lab.dataset.num_classes is None:
        return 0
    labels = np.asarray(lab.dataset.train_y[lab.simulation.data.shards[client]], np.int64)
    return int(np.bincount(labels, minlength=lab.dataset.num_classes).argmax())


def count_reasons(
    reasons: Sequence[str], columns: Mapping[str, npt.NDArray[Any]], malicious: npt.NDArray[Any]
) -> dict[str, dict[str, int]]:
    """How often each reason was given, to whom."""
    given = columns["reason"]
    return {
        kind: {reason: int(np.sum(given[rows] == place)) for place, reason in enumerate(reasons)}
        for kind, rows in (("honest", ~malicious), ("malicious", malicious))
    }


def factor_percentiles(factors: npt.NDArray[Any]) -> dict[str, float]:
    """Percentiles of the finite factors, how many were infinite, and of how many updates."""
    named = {f"p{level:g}": value for level, value in scores.percentiles(factors).items()}
    return {**named, "infinite": float(np.isposinf(factors).sum()), "count": float(len(factors))}


def share(accepted: npt.NDArray[Any]) -> float:
    return float(accepted.mean()) if len(accepted) else math.nan


def timing(lab: Laboratory, resumed_at: int) -> dict[str, float]:
    """Where the time of this session went, per round."""
    watch = lab.simulation.stopwatch
    rounds = max(1, watch.num_rounds)
    return {
        "rounds_per_second": watch.num_rounds / watch.total if watch.total > 0.0 else math.nan,
        "seconds_per_round": watch.total / rounds,
        "gradient_seconds": watch.gradient / rounds,
        "attack_seconds": watch.attack / rounds,
        "server_seconds": watch.server / rounds,
        "peak_memory_bytes": float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        "resumed_at": float(resumed_at),
    }


def provenance() -> dict[str, str]:
    """Which program this is. To be asked at the start: a development copy may change while a cell runs."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "version": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


@cache
def commit() -> str:
    """The commit of a development copy when this process first asked; empty for an installed package."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def curves_table(cell: str, evaluations: Sequence[CellEvaluation]) -> pa.Table:
    """Every evaluation in long form."""
    rows = [(e.round, name, value) for e in evaluations for name, value in e.metrics.items()]
    return pa.table(
        {
            "cell": pa.array([cell] * len(rows), pa.string()),
            "round": pa.array([row[0] for row in rows], pa.int64()),
            "metric": pa.array([row[1] for row in rows], pa.string()),
            "value": pa.array([row[2] for row in rows], pa.float64()),
        }
    )


def arrivals_table(lab: Laboratory) -> pa.Table:
    """One row per arrival."""
    columns = lab.simulation.trace.columns()
    reasons = lab.simulation.trace.reasons
    words = pa.DictionaryArray.from_arrays(columns.pop("reason").astype(np.int32), pa.array(reasons, pa.string()))
    return pa.table({**columns, "reason": words})


def save_table(path: Path, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomically(path, sink.getvalue().to_pybytes())


def plain(value: Any) -> Any:
    """JSON knows no infinity and no NaN: they become words."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
