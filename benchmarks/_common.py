"""What the measurements share: how one is started, tasks that take turns, jobs in processes of their own, and results
with their tables, their figure and where they came from.

`main` gives each script two options. `--quick` measures something small, to see that the script works, and writes
nothing. `--redraw` makes tables and figure again from the results that are there, and measures nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import inspect
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from secureafl.kernels.threads import MAX_THREADS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
SECUREAFL = (sys.executable, "-c", "from secureafl.cli import app; app()")
"""The `secureafl` command of this environment."""


# A script


@dataclass(frozen=True)
class Table:
    """What was measured, as the terminal and the documentation show it."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    title: str = ""


def main(
    doc: str | None,
    name: str,
    measure: Callable[[bool], Any],
    tables: Callable[[Any], list[Table]],
    draw: Callable[[Any], tuple[Figure, str]] | None = None,
    *,
    seed: int = 0,
) -> None:
    """Measure, show, and write `results/<name>.json`, and `.png` if there is something to draw.

    measure  returns what is kept as JSON; told whether it should be quick
    draw     returns the figure, and what it shows in a sentence
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="something small; nothing is written")
    parser.add_argument("--redraw", action="store_true", help="tables and figure from the results that are there")
    chosen = parser.parse_args()
    path = RESULTS / f"{name}.json"
    if chosen.redraw:
        kept = json.loads(path.read_text())
    else:
        kept = {**({} if chosen.quick else about()), "seed": seed, "results": measure(chosen.quick)}
    shown = tables(kept["results"])
    for table in shown:
        show(table)
    kept["tables"] = [asdict(table) for table in shown]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / path.name if chosen.quick else path
        if draw is not None:
            figure, kept["figure"] = draw(kept["results"])
            figure.savefig(place.with_suffix(".png"), dpi=150)
        place.write_text(json.dumps(kept, indent=2) + "\n")
    if not chosen.quick:
        print(f"{path.relative_to(ROOT)} is written")


def show(table: Table) -> None:
    shown = RichTable(title=table.title or None)
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def write(name: str, seed: int, results: Any) -> Path:
    """results/<name>.json, with where it comes from."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**about(), "seed": seed, "results": results}, indent=2) + "\n")
    return path


def about() -> dict[str, Any]:
    """Where a result comes from: the command, the commit and the versions that made it."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")  # those are what is written
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else ""),
        "threads": MAX_THREADS,
        "machine": platform.machine(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__},
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# Time


class Spent(NamedTuple):
    """Seconds by the clock, of this process on all processors, and of other processes that work for it."""

    clock: float
    processor: float
    elsewhere: float


def in_turns(
    tasks: Mapping[str, Callable[[], object]], num_turns: int, elsewhere: Callable[[], float] = lambda: 0.0
) -> dict[str, list[Spent]]:
    """What each task took in every turn, so that a busy moment of the machine hits them all. A first turn is not
    counted. `elsewhere` says what other processes have used so far.
    """
    for task in tasks.values():
        task()
    gc.collect()
    spent: dict[str, list[Spent]] = {name: [] for name in tasks}
    for _ in range(num_turns):
        for name, task in tasks.items():
            before = time.perf_counter(), time.process_time(), elsewhere()
            task()
            after = time.perf_counter(), time.process_time(), elsewhere()
            spent[name].append(Spent(*(then - now for now, then in zip(before, after, strict=True))))
    return spent


def processor_seconds(pid: int) -> float:
    """What a process has used so far, with its children that ended; 0 if it ended itself."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


# Memory and processes


def memory_mb(field: str) -> float:
    """Of this process: `VmHWM`, the peak of what is resident, `VmRSS`, what is now, or `RssAnon`, without files."""
    [kilobytes] = re.findall(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6


def child(job: Callable[..., Any], *arguments: Any, group: Path | None = None) -> subprocess.Popen[str]:
    """Start this function of a script in a process of its own, which ends right after it, closing nothing.

    group  the control group that it is put into before it takes any memory
    """

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    script = Path(inspect.getfile(job)).stem
    command = [sys.executable, __file__, script, job.__name__, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=join)


def told(process: subprocess.Popen[str]) -> Any:
    """What the function returned, once it has."""
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a measurement failed with {process.returncode}: see above")
    return json.loads(out)


if __name__ == "__main__":
    _script, _job, _arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(_script), _job)(*json.loads(_arguments))), flush=True)
    os._exit(0)
