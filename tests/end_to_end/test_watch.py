"""`secureafl watch` beside a real run in another process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.end_to_end.browser import CLI
from tests.end_to_end.child_processes import Process

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]


def start(run: Path, num_arrivals: int) -> Process:
    words = [sys.executable, "-m", "tests.end_to_end.crash_worker", str(run), str(num_arrivals)]
    worker = Process(words, {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "PATH": ""}, run.with_suffix(".txt"))
    worker.wait_ready(lambda: "at 10\n" in worker.log.read_text(), 300.0)
    return worker


@contextmanager
def watching(run: Path) -> Iterator[subprocess.Popen[str]]:
    """`secureafl watch` as a terminal starts it: under a shell in the background, Ctrl-C would be ignored."""
    words = ["env", "--default-signal=INT", *CLI, "watch", str(run)]
    environment = {**os.environ, "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as watcher:
        try:
            yield watcher
        finally:
            watcher.kill()


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    worker = start(tmp_path / "run", 200)
    try:
        with watching(tmp_path / "run") as watcher:
            out, _ = watcher.communicate(timeout=300)
    finally:
        worker.stop()
    assert watcher.returncode == 0
    assert "model version        200" in out
    assert "nobody writes to this run; it can be resumed" in out


def test_ctrl_c_ends_it_and_leaves_the_run_alone(tmp_path: Path) -> None:
    worker = start(tmp_path / "run", 1_000_000)
    try:
        with watching(tmp_path / "run") as watcher:
            with pytest.raises(subprocess.TimeoutExpired):
                watcher.communicate(timeout=20)
            watcher.send_signal(signal.SIGINT)
            out, _ = watcher.communicate(timeout=60)
        assert watcher.returncode == 0
        assert " live " in out
        assert "Traceback" not in out
        before = worker.log.read_text()
        worker.wait_ready(lambda: worker.log.read_text() != before, 60.0)
    finally:
        worker.kill()
