"""The standby as a service, against a real PostgreSQL: it follows, says how far it is, and starts the next server."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.end_to_end.child_processes import HOST, free_port
from tests.postgres import PostgresServer
from tests.scrapes import scrape
from tests.server.record.test_run import LARGE_FACTS, advance, die, machine, settings
from tests.server.recorded_runs import MAX_DELAY, PROBLEM, SERVER_LR, record
from typer.testing import CliRunner

from secureafl import Machine, MachineSettings
from secureafl.cli.main import app
from secureafl.errors import StoreError
from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.report.prometheus import MetricsServer
from secureafl.server.standby.metrics import STANDBY_METRICS, StandbyCollector
from secureafl.server.standby.service import StandbyService
from secureafl.view import terminal

PATIENCE = 180.0
FACTS = {**LARGE_FACTS, "defense": "secureafl"}


class Served:
    """A service on a thread, and what it said."""

    def __init__(self, url: RunUrl, command: list[str] | None = None, **options: float) -> None:
        self.said: list[str] = []
        self.service = StandbyService(url, command or [], say=self.said.append, **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as error:
            self.error = error

    def __repr__(self) -> str:
        return f"{self.said} {self.error!r}"

    def ends(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), self.said

    def close(self) -> None:
        self.service.stop()
        self.ends()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: object, **options: float) -> Served:
        started.append(Served(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


def wait_for(condition: Callable[[], object], said: object = "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


def touch(path: Path, code: int = 0) -> list[str]:
    """A command that says in a file how often it was called."""
    return [sys.executable, "-c", f"open({str(path)!r}, 'a').write('x'); raise SystemExit({code})"]


def test_it_waits_for_the_run_follows_it_and_ends_with_it(run_url: RunUrl, serve: Callable[..., Served]) -> None:
    standby = serve(run_url)
    time.sleep(0.3)
    run = Run(machine(), settings(run_url), facts=FACTS)
    wait_for(lambda: standby.service.lag is not None, standby)
    advance(run, 30)
    wait_for(lambda: standby.service.num_rows == run.journal.head.number, standby)
    run.finish()
    run.close()
    standby.ends()
    assert standby.error is None
    assert standby.said[-1] == f"{run_url} is finished"
    assert store_of(run_url).standbys() == []


def test_its_lag_is_in_metrics_watch_and_overview(run_url: RunUrl, serve: Callable[..., Served]) -> None:
    with record(run_url, 40):
        pass
    run = resume_recorded(run_url)
    standby = serve(run_url)
    metrics = MetricsServer(StandbyCollector(standby.service), host=HOST, port=free_port())
    store = store_of(run_url)
    wait_for(lambda: any(report.number == run.journal.head.number for report in store.standbys()), standby)
    [report] = store.standbys()
    assert (report.rows, report.seconds, report.can_lead) == (0, 0.0, False)
    found = scrape(metrics.url)
    assert set(STANDBY_METRICS) <= set(found)
    assert found["secureafl_standby_lag_rows"] == 0.0
    assert found["secureafl_standby_model_version"] == 40.0
    console = Console(width=160, record=True)
    terminal.watch(run_url, console, once=True)
    [line] = [line for line in console.export_text().splitlines() if "standby" in line]
    assert "behind by" in line
    assert "0 rows (checks only: it starts no server)" in line
    metrics.close()
    run.close()


def resume_recorded(url: RunUrl) -> Run:
    chosen = MachineSettings(server_lr=SERVER_LR, keep_recent=MAX_DELAY)
    made = Machine(PROBLEM.defense("secureafl"), np.zeros(PROBLEM.dim, np.float32), chosen)
    return Run.resume(made, StoreSettings(run_dir=url, snapshot_every=50))


def test_of_two_standbys_one_starts_a_server_and_tries_again_if_none_leads(
    run_url: RunUrl, serve: Callable[..., Served], tmp_path: Path
) -> None:
    run = Run(machine(), settings(run_url, lease_seconds=4.0), facts=FACTS)
    advance(run, 3)
    called = tmp_path / "called"
    both = [serve(run_url, touch(called), start_seconds=8.0) for _ in range(2)]
    wait_for(lambda: all(each.service.num_rows for each in both), both)
    time.sleep(5.0)
    assert not called.exists(), "the run has a leader"
    die(run)
    wait_for(called.exists)
    time.sleep(1.0)
    assert called.read_text() == "x", "only one of them starts a server"
    wait_for(lambda: called.read_text() == "xx")
    assert any("no server took the lease in 8 s; trying again in 2 s" in line for each in both for line in each.said)


def test_a_command_that_fails_is_named(run_url: RunUrl, serve: Callable[..., Served], tmp_path: Path) -> None:
    run = Run(machine(), settings(run_url, lease_seconds=5.0), facts=FACTS)
    advance(run, 3)
    die(run)
    standby = serve(run_url, touch(tmp_path / "called", code=3))
    wait_for(lambda: any("ended with exit code 3; trying again" in line for line in standby.said), standby)


def test_it_waits_for_objects_that_cannot_be_reached(
    run_url: RunUrl, serve: Callable[..., Served], tmp_path: Path
) -> None:
    objects = tmp_path / "objects"
    run = Run(machine(), settings(run_url, objects=str(objects)), facts=FACTS)
    advance(run, 3)
    run.close()
    objects.rename(tmp_path / "aside")
    standby = serve(run_url)
    wait_for(lambda: standby.said, standby)
    time.sleep(1.5)
    assert standby.error is None
    [said] = [line for line in standby.said if "waiting for it" in line]
    assert f"the folder {objects}" in said
    assert "is not there: mount it, or restore it" in said
    (tmp_path / "aside").rename(objects)
    wait_for(lambda: any("can be reached again" in line for line in standby.said), standby)
    wait_for(lambda: standby.service.num_rows, standby)


def test_damage_ends_it_with_its_name(run_url: RunUrl, serve: Callable[..., Served], postgres: PostgresServer) -> None:
    run = Run(machine(), settings(run_url), facts=FACTS)
    advance(run, 3)
    standby = serve(run_url)
    wait_for(lambda: standby.service.num_rows, standby)
    with postgres.connect() as database:
        database.execute(f'SET search_path TO "secureafl_{run_url.name}"')
        database.execute(
            "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.client = 'x'; RETURN NEW; END $$"
        )
        database.execute("CREATE TRIGGER spoil BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION spoil()")
    advance(run, 1)
    standby.ends()
    assert isinstance(standby.error, StoreError)
    assert "is damaged or was changed" in str(standby.error)
    run.close()


def test_a_folder_is_refused_with_what_to_do() -> None:
    done = CliRunner().invoke(app, ["standby", "runs/today", "--", "true"])
    assert done.exit_code != 0
    assert "secureafl copy" in " ".join(done.output.split())
