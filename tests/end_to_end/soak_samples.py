"""What the soak's processes take and what the run keeps, sampled, and what of it grew."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.child_processes import HOST
from tests.end_to_end.soak_growth import Allowance, Growth, judge
from tests.end_to_end.soak_servers import Servers
from tests.postgres import PostgresServer
from tests.scrapes import scrape

from secureafl.server.record.address import RunUrl

MEGABYTE = 2.0**20
MEMORY, FILES, THREADS = "resident memory (MB)", "open files", "threads"
ANONYMOUS = "anonymous memory (MB)"
"""Resident memory without the pages of files, which the system takes back when others need room."""
SHARED = "shared memory in use (MB)"
DISK, UPDATES, ROWS, SNAPSHOTS = "disk (MB)", "updates kept (MB)", "rows kept", "snapshots kept (MB)"
ALLOWED = {
    MEMORY: Allowance(1.05, 10.0),
    ANONYMOUS: Allowance(1.05, 10.0),
    FILES: Allowance(1.0, 5.0),
    THREADS: Allowance(1.0, 3.0),
}
"""By how much what a process takes may grow from the second tenth of its life to the last; and what all that have one
role take, from the second tenth of the run."""
ALLOWED_OF_POSTGRES = {**ALLOWED, FILES: Allowance(1.25, 10.0)}
"""Each of its processes opens what it comes to read, and is there as long as its client is."""
ALLOWED_DISK = Allowance(1.25, 10.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment."""

    hour: float
    figures: Mapping[str, float]
    pids: Mapping[str, int]


class Samples:
    """Takes them, and judges them."""

    def __init__(self) -> None:
        self.all: list[Sample] = []

    def take(self, hour: float, servers: Servers, latencies: Sequence[float], others: Mapping[str, float]) -> None:
        figures = {**others, **_latencies(latencies), **_disk(servers.postgres, servers.url), **_metrics(servers)}
        pids: dict[str, int] = {}
        for role, process in (("leader", servers.leader), ("standby", servers.standby)):
            if process is not None and (found := _process(process.pid)) is not None:
                pids[role] = process.pid
                figures |= {f"{role}: {name}": value for name, value in found.items()}
        figures |= {f"postgres: {name}": value for name, value in _tree(servers.postgres.pid).items()}
        self.all.append(Sample(hour, figures, pids))

    def series(self, name: str, pid: int | None = None, since: float = 0.0) -> list[float]:
        """What was sampled under this name; of one process alone."""
        role = name.partition(":")[0]
        return [
            sample.figures[name]
            for sample in self.all
            if name in sample.figures and sample.hour >= since and pid in (None, sample.pids.get(role))
        ]

    def growth(self, disk_since: float) -> list[Growth]:
        """All that was judged. The disk is from the hour on at which as much is kept as is kept at all."""
        found = [judge(DISK, self.series(DISK, since=disk_since), ALLOWED_DISK)]
        for role in ("leader", "standby", "postgres"):
            pids = sorted({sample.pids[role] for sample in self.all if role in sample.pids})
            for name, allowance in (ALLOWED_OF_POSTGRES if role == "postgres" else ALLOWED).items():
                what = f"{role}: {name}"
                found.append(judge(what, self.series(what), allowance))
                if len(pids) > 1:
                    found += [
                        judge(f"{what}, process {number}", self.series(what, pid), allowance)
                        for number, pid in enumerate(pids, 1)
                    ]
        return [each for each in found if each is not None]

    def columns(self) -> dict[str, list[float | None]]:
        """All samples, by what was sampled; None where there was nothing to see."""
        found: dict[str, list[float | None]] = {"hour": [round(sample.hour, 2) for sample in self.all]}
        for name in sorted({name for sample in self.all for name in sample.figures}):
            values = [sample.figures.get(name, math.nan) for sample in self.all]
            found[name] = [None if math.isnan(value) else float(f"{value:.5g}") for value in values]
        return found


def _latencies(some: Sequence[float]) -> dict[str, float]:
    ordered = sorted(some)
    places = {"p50": 0.5, "p99": 0.99, "max": 1.0} if ordered else {}
    return {f"latency {name} (s)": ordered[math.ceil(at * len(ordered)) - 1] for name, at in places.items()}


def _disk(postgres: PostgresServer, url: RunUrl) -> dict[str, float]:
    [(tables, updates, rows, snapshots)] = postgres.execute(
        url,
        "SELECT (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        f" WHERE nspname = 'secureafl_{url.name}' AND relkind = 'r' AND relname NOT IN ('written', 'handed_over')),"
        " (SELECT coalesce(sum(size), 0) FROM updates), (SELECT count(*) FROM log),"
        " (SELECT coalesce(sum(octet_length(content)), 0) FROM files)",
    )
    sizes = {DISK: tables, UPDATES: updates, SNAPSHOTS: snapshots}
    return {ROWS: float(rows), **{name: float(size) / MEGABYTE for name, size in sizes.items()}}


def _metrics(servers: Servers) -> dict[str, float]:
    """As Prometheus would see it; nothing of a server that has just ended, or just begun."""
    found = {}
    if servers.leader is not None and not servers.is_disturbed:
        with contextlib.suppress(OSError):
            told = scrape(f"http://{HOST}:{servers.leader.metrics_port}/metrics")
            found["metrics: tickets open"] = told["secureafl_tickets_open"]
    with contextlib.suppress(OSError):
        told = scrape(f"http://{HOST}:{servers.standby_port}/metrics")
        found["metrics: standby lag (rows)"] = told.get("secureafl_standby_lag_rows", math.nan)
    return found


def _process(pid: int) -> dict[str, float] | None:
    """What one process takes; None if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        files = _num_files(pid)
    except OSError:
        return None
    if "VmRSS" not in status:  # dead, and nobody has asked how it ended
        return None
    memory, anonymous = (int(status[name].split()[0]) / 1024.0 for name in ("VmRSS", "RssAnon"))
    return {MEMORY: memory, ANONYMOUS: anonymous, FILES: files, THREADS: float(status["Threads"])}


def _tree(pid: int) -> dict[str, float]:
    """What PostgreSQL's processes take together; each counts as a thread. The memory that they share has one size from
    the start, and is filled as pages are used.
    """
    found = {MEMORY: 0.0, ANONYMOUS: 0.0, SHARED: 0.0, FILES: 0.0, THREADS: 0.0}
    for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            sizes = {line.split(":")[0]: int(line.split()[1]) / 1024.0 for line in lines if line.endswith(" kB")}
            files = _num_files(each)
            found[MEMORY] += sizes["Pss"] - sizes["Pss_Shmem"]
            found[ANONYMOUS] += sizes["Pss_Anon"]
            found[SHARED] += sizes["Pss_Shmem"]
            found[FILES] += files
            found[THREADS] += 1.0
    return found


def _num_files(pid: int) -> float:
    return float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))
