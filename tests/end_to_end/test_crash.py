"""kill -9 at random instants, also within journal and snapshot writes: nothing acknowledged is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_ARRIVALS = 120


def start(run_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.end_to_end.crash_worker", str(run_dir), str(NUM_ARRIVALS)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(run_dir: Path) -> str:
    """The state a worker ends in when nobody disturbs it any more."""
    out, err = start(run_dir).communicate(timeout=300)
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


@pytest.mark.slow
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    undisturbed = finish(tmp_path / "undisturbed")
    for seed in range(10):
        crash(tmp_path / "run", 5, random.Random(seed))
        assert finish(tmp_path / "run") == undisturbed
        shutil.rmtree(tmp_path / "run")
