"""Two real servers, one run in a real PostgreSQL: killed, or stopped past its lease and woken, none writes what is not
its own, and nothing acknowledged is lost.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.postgres import PostgresServer

from secureafl.server.record.address import Place, RunUrl, store_of
from secureafl.server.record.entries import Event
from secureafl.server.review.verify import verify

ROOT = Path(__file__).parents[2]
NUM_ARRIVALS = 60
LEASE_SECONDS = 12.0  # a busy machine renews it in time, and connects
PATIENCE = 300.0

pytestmark = pytest.mark.end_to_end


class Worker:
    """A server in a process of its own, which does its clients' work too."""

    def __init__(self, place: Place, num_arrivals: int = NUM_ARRIVALS) -> None:
        command = [sys.executable, "-m", "tests.end_to_end.crash_worker", str(place), str(num_arrivals)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, str(LEASE_SECONDS)], cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env={**os.environ}
        )
        self.pid = self._process.pid

    def wait_until(self, version: int) -> int:
        """Return once it says that it has come so far; where it began."""
        assert self._process.stdout is not None
        first = None
        for line in self._process.stdout:
            at = int(line.split()[1]) if line.startswith("at ") else NUM_ARRIVALS
            first = at if first is None else first
            if at >= version:
                return first
        raise AssertionError(self._process.communicate()[1])

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def finish(self) -> tuple[str, str, int]:
        """What it said, what it complained of, and how it ended."""
        out, err = self._process.communicate(timeout=PATIENCE)
        return out, err, self._process.returncode


def final_state(worker: Worker) -> str:
    out, err, _ = worker.finish()
    assert "state " in out, err
    return out.split("state ")[1].strip()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def num_resumed(url: RunUrl) -> int:
    journal = store_of(url).read()
    found = sum(1 for _ in journal.entries(Event.RESUMED))
    journal.close()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return final_state(Worker(tmp_path_factory.mktemp("undisturbed") / "run"))


def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(undisturbed: str, run_url: RunUrl) -> None:
    acknowledged = 0
    for until in (10, 30):
        leader = Worker(run_url)
        assert leader.wait_until(until) >= acknowledged
        acknowledged = until
        leader.send(signal.SIGKILL)
        leader.finish()
    assert final_state(Worker(run_url)) == undisturbed
    assert num_resumed(run_url) == 2
    verify(run_url)


def test_a_leader_that_was_stopped_past_its_lease_cannot_write_when_it_wakes(
    undisturbed: str, run_url: RunUrl, postgres: PostgresServer
) -> None:
    old = Worker(run_url)
    old.wait_until(10)
    old.send(signal.SIGSTOP)
    new = Worker(run_url)
    wait_for(lambda: num_resumed(run_url) == 1)  # it leads, and is at work
    old.send(signal.SIGCONT)
    _, complaint, code = old.finish()
    assert code == 1
    said = complaint.splitlines()[-1]
    assert f"is led by pid {new.pid} on " in said or "to renew the lease: this server writes nothing more" in said
    assert final_state(new) == undisturbed
    assert num_resumed(run_url) == 1
    assert postgres.execute(run_url, "SELECT epoch FROM head") == [(2,)]
    found = verify(run_url)
    [(largest, count)] = postgres.execute(run_url, "SELECT max(number), count(*) FROM log")
    assert found.head is not None
    assert largest == count == found.head.number
    arrivals = postgres.execute(run_url, "SELECT version FROM log WHERE event = 'arrival' ORDER BY number")
    assert [version for (version,) in arrivals] == list(range(NUM_ARRIVALS)), "each of them once"
