"""A sweep that is killed, driver and workers alike, must end like one that was left alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.child_processes import Process, ProcessFailedError, command_line, find_processes, tail
from tests.lab.tiny import write_tiny_fashion

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
NUM_CELLS = 4
REPRODUCIBLE = (
    "settings",
    "final",
    "last",
    "detection",
    "reasons",
    "lipschitz",
    "malicious",
    "digests",
    "server_bytes",
)
OPTIONS = {
    "rounds": 60,
    "jobs": 2,
    "attack": ["none", "scaling"],
    "snapshot-rounds": 10,
    "set": ["num_clients=8", "batch_size=8", "evaluate_every=20", "malicious_fraction=0.25"],
}


class Sweeper:
    """Starts `secureafl lab sweep demo` and, on demand, ends every process of it without warning."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._source = write_tiny_fashion(directory / "data")
        self._started: list[Process] = []
        self._marker = f"SECUREAFL_TEST={uuid.uuid4()}"

    def start(self, out: Path, **changes: Any) -> Process:
        name, value = self._marker.split("=")
        env = os.environ | {
            name: value,
            "PYTHONPATH": str(ROOT / "src"),
            "XDG_CACHE_HOME": str(self._directory / "cache"),
        }
        command = [sys.executable, "-c", "from secureafl.cli import app; app()", "lab", "sweep", "demo"]
        for option, given in {**OPTIONS, "out": out, "source": self._source, **changes}.items():
            for each in given if isinstance(given, list) else [given]:
                command += [f"--{option}", str(each)]
        self._started.append(Process(command, env, self._directory / f"{uuid.uuid4()}.log"))
        return self._started[-1]

    def num_alive(self) -> int:
        return len(find_processes(self._marker))

    def send_to_driver(self, number: signal.Signals) -> None:
        """A signal to the command itself, and not to its workers."""
        [driver] = [pid for pid in find_processes(self._marker) if "lab sweep" in command_line(pid)]
        os.kill(driver, number)

    def kill(self) -> None:
        """SIGKILL to all, as when the power fails."""
        while pids := find_processes(self._marker):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for process in self._started:
            process.kill()  # nothing is left of it: this only collects what the system remembers


@pytest.fixture
def sweeper(tmp_path: Path) -> Iterator[Sweeper]:
    sweeper = Sweeper(tmp_path)
    yield sweeper
    sweeper.kill()


def wait_for(happened: Callable[[], bool], process: Process, timeout: float = 600.0) -> None:
    with contextlib.suppress(ProcessFailedError):
        process.wait_ready(happened, timeout)
    assert happened(), tail(process.log)


def results(out: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in out.glob("cells/*/result.json")}


def has_snapshot(out: Path) -> bool:
    return len(list(out.glob("cells/*/snapshot.safetensors"))) > 0


def is_complete(out: Path) -> bool:
    return (out / "demo.parquet").exists()


def test_a_sweep_killed_twice_ends_like_an_undisturbed_one(sweeper: Sweeper, tmp_path: Path) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    process = sweeper.start(calm)
    wait_for(lambda: is_complete(calm), process)
    sweeper.kill()

    process = sweeper.start(disturbed)
    wait_for(lambda: has_snapshot(disturbed), process)
    sweeper.kill()
    assert len(results(disturbed)) < NUM_CELLS
    process = sweeper.start(disturbed)
    wait_for(lambda: len(results(disturbed)) >= 2, process)
    wait_for(lambda: has_snapshot(disturbed), process)
    sweeper.kill()
    assert len(results(disturbed)) < NUM_CELLS
    process = sweeper.start(disturbed)
    wait_for(lambda: is_complete(disturbed), process)

    expected, found = results(calm), results(disturbed)
    assert len(expected) == NUM_CELLS
    assert any(result["timing"]["resumed_at"] > 0 for result in found.values())
    assert found.keys() == expected.keys()
    for key, result in expected.items():
        assert {name: found[key][name] for name in REPRODUCIBLE} == {name: result[name] for name in REPRODUCIBLE}
        for table in ("curves.parquet", "arrivals.parquet"):
            assert (disturbed / "cells" / key / table).read_bytes() == (calm / "cells" / key / table).read_bytes()
    assert (disturbed / "demo.parquet").read_bytes() == (calm / "demo.parquet").read_bytes()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_ends_with_its_driver(by: signal.Signals, sweeper: Sweeper, tmp_path: Path) -> None:
    process = sweeper.start(tmp_path / "out", jobs=1, rounds=100_000)
    wait_for(lambda: has_snapshot(tmp_path / "out"), process)
    assert sweeper.num_alive() > 1
    sweeper.send_to_driver(by)
    deadline = time.monotonic() + 30.0
    while sweeper.num_alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sweeper.num_alive() == 0
