"""kill -9 between a snapshot of what changed and the next one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from secureafl.server.record.snapshots import _State
from secureafl.server.review.verify import verify

ROOT = Path(__file__).parents[2]
KILLED_AT = (89, 111)
UNTIL = 128


def reach(run_dir: Path, until: int, rows: str) -> str:
    """The state that a server reaches before it is killed."""
    command = [sys.executable, "-m", "tests.end_to_end.increment_worker", str(run_dir), str(until), rows]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        line = worker.stdout.readline()
        assert line.startswith("state "), worker.stderr.read()
        os.kill(worker.pid, signal.SIGKILL)
    return line


@pytest.mark.end_to_end
@pytest.mark.parametrize("rows", ["memory", "mapped"])
def test_a_server_killed_between_two_increments_goes_on_bit_for_bit(rows: str, tmp_path: Path) -> None:
    undisturbed = reach(tmp_path / "undisturbed", UNTIL, rows)
    for version in KILLED_AT:
        reach(tmp_path / "run", version, rows)
        newest = max((tmp_path / "run" / "snapshots").glob("0*"))
        assert _State(newest).header() is not None, "the newest snapshot holds what changed"
        assert int(newest.stem) < version, "and arrivals came after it"
        verify(tmp_path / "run")
    assert reach(tmp_path / "run", UNTIL, rows) == undisturbed
    assert list((tmp_path / "run").glob("rows-*")) == [], "nothing is left of mapped rows"
