"""A real Flower and a real NVFlare federation, each with a standby: the server is killed, and training goes on."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end import nvflare_processes
from tests.end_to_end.child_processes import Process, tail
from tests.end_to_end.flower_processes import OF_THE_TEST_APP, Config, Deployment, toml_pairs
from tests.end_to_end.test_nvflare_deployment import recipe
from tests.postgres import PostgresServer

from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.entries import Event
from secureafl.server.review.verify import verify

LEASE_SECONDS = 5.0
PATIENCE = 900.0

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),  # NVFlare's own call
]


class StandbyProcess:
    """`secureafl standby`, as an operator starts it."""

    def __init__(self, url: RunUrl, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        secureafl = [sys.executable, "-c", "from secureafl.cli import app; app()"]
        self._process = Process([*secureafl, "standby", str(url), "--", *command], env, log)
        self.log = log

    def close(self) -> None:
        self._process.stop()


def num_arrivals(url: RunUrl) -> int:
    store = store_of(url, lease_seconds=60.0)  # and as much patience with a busy machine
    if not store.has_run():
        return 0
    journal = store.read()
    found = sum(1 for _ in journal.entries(Event.ARRIVAL))
    journal.close()
    return found


def wait_for(condition: Callable[[], object], *logs: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "\n".join(tail(log) for log in logs if log.exists())
        time.sleep(0.2)


def follows(url: RunUrl) -> bool:
    return any(report.can_lead for report in store_of(url, lease_seconds=60.0).standbys())


def check_record(url: RunUrl, num_leaders: int) -> None:
    """Every arrival once, under so many leaders in turn or more, and every hash is right."""
    verify(url)
    journal = store_of(url).read()
    versions = [entry.version for entry in journal.entries(Event.ARRIVAL)]
    resumed = sum(1 for _ in journal.entries(Event.RESUMED))
    journal.close()
    assert versions == list(range(len(versions)))
    assert resumed >= num_leaders - 1, "one for each disturbance, and more if the machine was too busy to renew a lease"


def test_a_flower_federation_goes_on_by_itself_when_its_server_is_killed(
    tmp_path: Path, run_url: RunUrl, postgres: PostgresServer
) -> None:
    app = Path(__file__).parent / "flower_app"
    config: Config = {
        "secureafl.run-dir": str(run_url),
        "secureafl.min-nodes": 2,
        "secureafl.lease-seconds": LEASE_SECONDS,
        "delay": 0.2,
    }
    with Deployment(tmp_path / "flower", warm=OF_THE_TEST_APP) as deployment:
        resumed = toml_pairs({**config, "secureafl.resume": True})
        command = ["flwr", "run", str(app), deployment.connection, "--run-config", resumed]
        deployment.start_nodes({index: {} for index in range(2)})
        deployment.submit(app, config)
        standby = StandbyProcess(run_url, command, deployment.env, tmp_path / "standby.log")
        try:
            wait_for(lambda: num_arrivals(run_url) >= 5 and follows(run_url), standby.log, deployment.superlink_log)
            pid = deployment.server_process()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed, before = time.monotonic(), num_arrivals(run_url)
            wait_for(lambda: num_arrivals(run_url) > before, standby.log, deployment.superlink_log)
            seconds = time.monotonic() - killed
            wait_for(lambda: num_arrivals(run_url) > before + 5, standby.log, deployment.superlink_log)
            deployment.end_server()
            wait_for(lambda: "is finished" in standby.log.read_text(), standby.log)
        finally:
            standby.close()
    check_record(run_url, 2)
    sys.stdout.write(f"next arrival after {seconds:.1f} s, lease {LEASE_SECONDS:g} s\n")  # pytest -s shows it


def test_an_nvflare_federation_goes_on_by_itself_when_its_server_is_killed(
    tmp_path: Path, run_url: RunUrl, postgres: PostgresServer
) -> None:
    """The process that runs the job is killed; NVFlare's own server, which a service manager would restart, stays."""
    sites = ["honest-1", "honest-2"]
    settings: dict[str, Any] = {"lease_seconds": LEASE_SECONDS}
    with nvflare_processes.Deployment(tmp_path / "nvflare", sites) as deployment:
        deployment.start_sites(*sites)
        deployment.submit(recipe(run_url, 2, **settings))
        job = tmp_path / "job"
        recipe(run_url, 2, resume=True, **settings).export(job_dir=str(job))
        [exported] = [path.parent for path in job.rglob("meta.json")]
        kit = str(deployment.kits / nvflare_processes.ADMIN)
        command = ["nvflare", "job", "submit", "-j", str(exported), "--startup-kit", kit]
        standby = StandbyProcess(run_url, command, dict(os.environ), tmp_path / "standby.log")
        try:
            wait_for(lambda: num_arrivals(run_url) >= 5 and follows(run_url), standby.log)
            [pid] = deployment.job_processes()
            os.kill(pid, signal.SIGKILL)
            killed, before = time.monotonic(), num_arrivals(run_url)
            wait_for(lambda: num_arrivals(run_url) > before, standby.log)
            seconds = time.monotonic() - killed
            wait_for(lambda: num_arrivals(run_url) > before + 5, standby.log)
        finally:
            standby.close()
    check_record(run_url, 2)
    sys.stdout.write(f"next arrival after {seconds:.1f} s, lease {LEASE_SECONDS:g} s\n")  # pytest -s shows it
