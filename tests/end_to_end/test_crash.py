"""kill -9 at random instants, also within journal and snapshot writes: nothing acknowledged is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.end_to_end.flower_processes import OF_THE_TEST_APP, Config, Deployment
from tests.end_to_end.journals import read_journal

from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.run import repeat
from secureafl.server.review.opened import RecordedRun

ROOT = Path(__file__).parents[2]
NUM_ARRIVALS = 120


def start(run_dir: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.end_to_end.crash_worker", str(run_dir), str(NUM_ARRIVALS)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env})


def finish(run_dir: Path, **env: str) -> str:
    """The state a worker ends in when nobody disturbs it any more."""
    out, err = start(run_dir, **env).communicate(timeout=300)
    assert "state " in out, err
    return out.split("state ")[1].strip()


def crash(run_dir: Path, num_kills: int, rng: random.Random) -> None:
    """Kill the worker so many times at random instants of its work."""
    for _ in range(num_kills):
        worker = start(run_dir)
        assert worker.stdout is not None
        first = worker.stdout.readline()  # imports are done, work begins
        assert first.startswith("at "), worker.communicate()[1]
        if int(first.split()[1]) >= NUM_ARRIVALS:
            worker.communicate(timeout=60)
            shutil.rmtree(run_dir)  # the run is over: begin another
            continue
        time.sleep(rng.uniform(0.0, 0.4))
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate(timeout=60)


@pytest.mark.end_to_end
def test_five_kills_change_nothing(tmp_path: Path) -> None:
    undisturbed = finish(tmp_path / "undisturbed")
    crash(tmp_path / "run", 5, random.Random(1))
    assert finish(tmp_path / "run") == undisturbed


@pytest.mark.end_to_end
def test_a_process_that_compiles_its_kernels_and_one_that_loads_them_agree(tmp_path: Path) -> None:
    """Numba optimises a kernel once for use and once for its cache: sums must leave no order to its choice."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    compiled, loaded = finish(tmp_path / "first", **cache), finish(tmp_path / "second", **cache)
    assert compiled == loaded == finish(tmp_path / "one-thread", **cache, NUMBA_NUM_THREADS="1")


@pytest.mark.campaign
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    undisturbed = finish(tmp_path / "undisturbed")
    for seed in range(10):
        crash(tmp_path / "run", 5, random.Random(seed))
        assert finish(tmp_path / "run") == undisturbed
        shutil.rmtree(tmp_path / "run")


def arrivals(run_dir: Path) -> list[Entry]:
    return [row for row in read_journal(run_dir) if row.event is Event.ARRIVAL]


def wait_for(condition: Callable[[], object], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.2)


@pytest.mark.end_to_end
def test_a_flower_server_killed_twice_loses_nothing(tmp_path: Path) -> None:
    crash_flower(tmp_path, 2)


@pytest.mark.campaign
def test_a_flower_server_killed_ten_times_loses_nothing(tmp_path: Path) -> None:
    crash_flower(tmp_path, 10)


def crash_flower(tmp_path: Path, num_kills: int) -> None:
    run_dir, rng = tmp_path / "run", random.Random(0)
    app = Path(__file__).parent / "flower_app"
    config: Config = {"secureafl.run-dir": str(run_dir), "secureafl.min-nodes": 2}
    with Deployment(tmp_path / "flower", warm=OF_THE_TEST_APP) as deployment:
        deployment.start_nodes({index: {} for index in range(2)})
        for _ in range(num_kills):
            before = len(arrivals(run_dir))
            deployment.submit(app, {**config, "secureafl.resume": before > 0})
            wait_for(lambda count=before: len(arrivals(run_dir)) >= count + 2, 120.0)  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 3.0))
            pid = deployment.server_process()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: deployment.server_process() is None, 30.0)
        goal = len(arrivals(run_dir)) + 4
        deployment.run(app, {**config, "secureafl.resume": True, "secureafl.stop-after-updates": goal}, timeout=200.0)
    run = RecordedRun.open(run_dir)
    assert [entry.version for entry in run.journal.entries(Event.ARRIVAL)] == list(range(goal)), "none lost, none twice"
    assert sum(1 for _ in run.journal.entries(Event.RESUMED)) == num_kills
    machine = run.machine()
    for entry in run.journal.entries(payloads=True):
        if entry.event is Event.ISSUED:
            assert entry.base is not None
            assert entry.base <= machine.model.version, "every version a client received exists"
        repeat(machine, entry, "replay from the start")  # checks the model's hash at every arrival
    final = load_file(run_dir / "model.safetensors")["w"]
    assert final.tobytes() == machine.model.params.tobytes()
    run.journal.close()
