"""Cells in processes of their own, one core each, one or several at a time. Or in this process.

Numerical libraries read their number of threads when they are loaded, and sums depend on it. So workers start with one
thread, on every machine and in every kind of sweep. In this process, which may have loaded them before, they are held
to one thread while a cell runs, with the same bits in the end.

The allocator reads its settings then as well. Every gradient needs the same few megabytes, and glibc returns blocks of
that size to the system at once, to fault them in again page by page in the next round. Workers keep them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch
from threadpoolctl import threadpool_limits

from secureafl.errors import SecureAFLError, SettingsError, described
from secureafl.lab.cells.cell import CellSettings
from secureafl.lab.cells.experiment import CellStatus, Progress, RunSettings, run_cell

PROGRESS = "progress.json"
REPORT_SECONDS = 0.5
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""Read by glibc alone. A worker then holds as much memory as it ever needed at once."""


class SweepObserver(Protocol):
    """Hears how cells fare."""

    def advanced(self, key: str, status: CellStatus) -> None:
        """A running cell is so far."""

    def finished(self, key: str, failure: str | None) -> None:
        """A cell is at its end, or could not get there."""


def run_cells(
    cells: Mapping[str, CellSettings], store: Path, *, jobs: int | None, run: RunSettings, observer: SweepObserver
) -> dict[str, str]:
    """Run these cells and return what went wrong, by cell. A failure ends its own cell only.

    jobs  processes at a time; None for no other process than this one
    """
    if not cells:
        return {}
    if jobs is None:
        return _here(cells, store, run, observer)
    for cell in cells.values():
        if typed := cell.typed():
            raise SettingsError(
                f"{typed[0]} is in this process alone: save it in a module and import it from there, or leave jobs out"
            )
    with _environment({**dict.fromkeys(SINGLE_THREADED, "1"), **KEEPS_MEMORY}):
        return _in_workers(cells, store, jobs, run, observer)


def work(key: str, cell: str, store: str, run: str) -> str | None:
    """One cell, in a worker. What went wrong comes back as text; how far it is stands in a file beside the result."""
    directory = Path(store) / key
    try:
        settings = CellSettings.model_validate_json(cell)
        if settings.cell_id() != key:
            return "the file of its defense, attack or partition was changed meanwhile; run the same command again"
        directory.mkdir(parents=True, exist_ok=True)
        run_cell(settings, Path(store), _seldom(key, _ProgressFile(directory)), RunSettings.model_validate_json(run))
    except SecureAFLError as error:
        return str(error)
    except OSError as error:
        return described(error)
    finally:
        (directory / PROGRESS).unlink(missing_ok=True)
    return None


class _ProgressFile:
    """Where a worker says how far it is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def advanced(self, key: str, status: CellStatus) -> None:
        fields = [status.done, status.rounds, status.seconds, status.resumed_at, dict(status.latest)]
        beside = self._directory / f".{PROGRESS}.{os.getpid()}"
        beside.write_text(json.dumps(fields))
        beside.rename(self._directory / PROGRESS)

    def finished(self, key: str, failure: str | None) -> None:
        """Its return value says so."""


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Processes started within inherit these values; this one has its own back afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_driver(line: Connection) -> None:
    """A worker whose driver closed its end of the line, or was killed, has no one to work for."""

    def wait_and_end() -> None:
        line.poll(None)
        os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()


def _here(cells: Mapping[str, CellSettings], store: Path, run: RunSettings, observer: SweepObserver) -> dict[str, str]:
    """One by one in this process. An error that is not ours is raised as it is: it comes from the user's own code."""
    failures: dict[str, str] = {}
    with _single_threaded():
        for key, cell in cells.items():
            try:
                run_cell(cell, store, _seldom(key, observer), run)
            except SecureAFLError as error:
                failures[key] = str(error)
            observer.finished(key, failures.get(key))
    return failures


def _seldom(key: str, observer: SweepObserver) -> Progress:
    """Tells the observer at most so often as a worker would."""
    reported = -REPORT_SECONDS

    def report(status: CellStatus) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            reported = now
            observer.advanced(key, status)

    return report


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Numerical libraries use one thread within, and PyTorch is as it was afterwards."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with threadpool_limits(1), _environment({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}):
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    torch.set_num_threads(threads)


def _in_workers(
    cells: Mapping[str, CellSettings], store: Path, jobs: int, run: RunSettings, observer: SweepObserver
) -> dict[str, str]:
    """Each worker is a pool of one process: one that ends abruptly takes no other cell with it."""
    failures: dict[str, str] = {}
    waiting = list(cells.items())[::-1]
    running: dict[Future[str | None], tuple[str, ProcessPoolExecutor]] = {}
    with ExitStack() as stack:
        idle = [_worker(stack) for _ in range(min(jobs, len(cells)))]
        while waiting or running:
            while waiting and idle:
                (key, cell), worker = waiting.pop(), idle.pop()
                future = worker.submit(work, key, cell.model_dump_json(), str(store), run.model_dump_json())
                running[future] = key, worker
            done, _ = wait(running, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED)
            _look([key for key, _ in running.values()], store, observer)
            for future in done:
                key, worker = running.pop(future)
                try:
                    failure = future.result()
                except BrokenProcessPool:
                    failure = "its process ended abruptly; the same command goes on from the last snapshot"
                    worker = _worker(stack)
                except Exception as error:  # of the user's own code; its cause is the worker's traceback
                    failure = str(error.__cause__ or error)
                idle.append(worker)
                if failure is not None:
                    failures[key] = failure
                observer.finished(key, failure)
    return failures


def _worker(stack: ExitStack) -> ProcessPoolExecutor:
    """A process that starts with its first cell. It ends with the stack, also in the middle of a cell."""
    context = multiprocessing.get_context("spawn")
    line, end = context.Pipe(duplex=False)
    stack.enter_context(line)
    pool = ProcessPoolExecutor(1, mp_context=context, initializer=_end_with_driver, initargs=(line,))
    stack.enter_context(pool)
    stack.enter_context(end)  # closed first
    return pool


def _look(keys: list[str], store: Path, observer: SweepObserver) -> None:
    """Pass on what running cells say of themselves."""
    for key in keys:
        try:
            fields = json.loads((store / key / PROGRESS).read_text())
        except FileNotFoundError:
            continue
        observer.advanced(key, CellStatus(*fields))
