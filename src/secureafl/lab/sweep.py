"""Many cells, several at a time, on Ray. Finished cells are skipped, unfinished ones go on where they stopped.

    <out>/cells/<cell id>/    one directory per cell (see `experiment`); recipes share them
    <out>/<name>.json         which cells belong to the sweep
    <out>/<name>.parquet      all their curves

Nothing is kept in memory that a restart would miss: the driver and its workers may be killed at any moment.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from secureafl.errors import SecureAFLError
from secureafl.lab.cell import CellSettings
from secureafl.lab.experiment import RESULT, RunSettings, Status, read_result, run_cell
from secureafl.lab.progress import SweepProgress
from secureafl.lab.results import save_table
from secureafl.lab.storage import save_json

CELLS = "cells"
PROGRESS = "progress.json"
REPORT_SECONDS = 0.5
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""One core per cell; set before the workers start, because libraries read them when they are loaded."""
RAY_MEMORY = 100 * 2**20
"""Ray's object store: cells hand over settings and nothing else."""


def run_sweep(
    name: str,
    cells: Sequence[CellSettings],
    out_dir: Path,
    *,
    jobs: int,
    run: RunSettings = RunSettings(),
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """The results of all cells, in their order. A cell that fails is reported at the end; the others are not lost."""
    console = console or Console()
    store = out_dir / CELLS
    store.mkdir(parents=True, exist_ok=True)
    unique = {cell.cell_id(): cell for cell in cells}
    save_json(out_dir / f"{name}.json", {"recipe": name, "cells": list(unique)})
    waiting = {key: cell for key, cell in unique.items() if not (store / key / RESULT).exists()}
    with SweepProgress(console, name, unique, waiting) as progress:
        failures = (
            _run_here(waiting, store, run, progress) if jobs == 1 else _run_on_ray(waiting, store, jobs, run, progress)
        )
    if failures:
        raise SecureAFLError("\n".join(f"cell {key} failed: {error}" for key, error in failures.items()))
    curves = [pq.read_table(store / key / "curves.parquet") for key in unique]
    save_table(out_dir / f"{name}.parquet", pa.concat_tables(curves))
    return [read_result(store / key) for key in unique]


def read_sweep(out_dir: Path, name: str) -> list[dict[str, Any]]:
    """The results of a sweep's finished cells."""
    cells = json.loads((out_dir / f"{name}.json").read_text())["cells"]
    return [read_result(out_dir / CELLS / key) for key in cells if (out_dir / CELLS / key / RESULT).exists()]


def _run_here(
    waiting: dict[str, CellSettings], store: Path, run: RunSettings, progress: SweepProgress
) -> dict[str, str]:
    failures = {}
    for key, cell in waiting.items():
        progress.started(key)
        try:
            run_cell(cell, store, lambda status, key=key: progress.advanced(key, status), run)  # type: ignore[misc]
        except SecureAFLError as error:
            failures[key] = str(error)
        progress.finished(key, failures.get(key))
    return failures


def _run_on_ray(
    waiting: dict[str, CellSettings], store: Path, jobs: int, run: RunSettings, progress: SweepProgress
) -> dict[str, str]:
    if not waiting:
        return {}
    failures: dict[str, str] = {}
    with _ray(jobs) as ray:
        work = ray.remote(num_cpus=1, max_retries=2)(_work)
        texts = {key: cell.model_dump_json() for key, cell in waiting.items()}
        running = {work.remote(text, str(store.absolute()), run.model_dump_json()): key for key, text in texts.items()}
        while running:
            ready, _ = ray.wait(list(running), timeout=REPORT_SECONDS)
            for key, status in _statuses(store, set(running.values())):
                progress.advanced(key, status)
            for reference in ready:
                key = running.pop(reference)
                try:
                    failure = ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = str(error)
                if failure is not None:
                    failures[key] = failure
                progress.finished(key, failure)
    return failures


def _work(cell: str, store: str, run: str) -> str | None:
    """One cell in a Ray worker; what went wrong comes back as text."""
    settings = CellSettings.model_validate_json(cell)
    directory = Path(store) / settings.cell_id()
    directory.mkdir(parents=True, exist_ok=True)
    reported = 0.0

    def report(status: Status) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS or status.done == status.rounds:
            reported = now
            beside = directory / f"progress.{os.getpid()}"
            beside.write_text(
                json.dumps([status.done, status.rounds, status.seconds, status.resumed_at, dict(status.latest)])
            )
            beside.rename(directory / PROGRESS)

    try:
        run_cell(settings, Path(store), report, RunSettings.model_validate_json(run))
    except SecureAFLError as error:
        return str(error)
    finally:
        (directory / PROGRESS).unlink(missing_ok=True)
    return None


def _statuses(store: Path, keys: set[str]) -> Iterator[tuple[str, Status]]:
    for key in keys:
        try:
            yield key, Status(*json.loads((store / key / PROGRESS).read_text()))
        except FileNotFoundError:
            continue


@contextmanager
def _ray(jobs: int) -> Iterator[Any]:
    """A Ray of our own on this machine, ended with the sweep."""
    os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ray.init(
        address="local",
        num_cpus=jobs,
        object_store_memory=RAY_MEMORY,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
