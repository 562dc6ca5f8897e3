"""Leaders come and go, and the database too: nothing that was acknowledged is lost. `failover` has the full size."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.failover import PATIENCE, Server, disturb
from tests.end_to_end.failover_worker import undisturbed
from tests.postgres import PostgresServer, is_installed, running

from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.entries import Event
from secureafl.server.review.verify import verify

NUM_RESTARTS = 5
LEASE_SECONDS = 10.0  # a busy machine renews it in time, and connects

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """One that may be killed."""
    if not is_installed():
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running() as server:
        yield server


def models(url: RunUrl) -> dict[int, str]:
    """The hash on record after each arrival, once the whole record was checked."""
    verify(url)
    journal = store_of(url).read()
    found = {entry.version: entry.model.hex() for entry in journal.entries(Event.ARRIVAL) if entry.model is not None}
    journal.close()
    return found


def test_a_leader_that_is_killed_stopped_or_cut_off_is_replaced_and_nothing_is_lost(
    postgres: PostgresServer, run_url: RunUrl
) -> None:
    outcome = disturb(postgres, run_url.name, {"killed": 1, "stopped": 1, "cut": 1})
    assert outcome.num_epochs >= 4, "one for each disturbance, and more if the machine was too busy to renew a lease"
    assert outcome.num_acknowledged > 15
    assert outcome.num_lost == 0, "acknowledged, and not on record"
    assert outcome.num_fenced_rows == 0, "written by a server that did not lead"
    assert outcome.num_early == 0, "two leaders at a time"
    assert outcome.identical


def last(server: Server) -> int:
    found = server.acknowledged()
    return found[-1].version if found else -1


def wait_until_past(server: Server, version: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while last(server) <= version:
        assert server.lives, server.end()
        assert time.monotonic() < deadline, server.log.read_text()[-500:] if server.log.exists() else "not begun"
        time.sleep(0.05)


def kill_and_restart(postgres: PostgresServer) -> None:
    postgres.stop(signal.SIGKILL)
    time.sleep(0.5)
    postgres.start()


def test_a_patient_server_waits_for_a_database_that_was_killed_and_loses_nothing(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    server = Server("patient", own_postgres, "patient", tmp_path, PATIENCE, LEASE_SECONDS)
    wait_until_past(server, 5)
    for _ in range(NUM_RESTARTS):
        kill_and_restart(own_postgres)
        wait_until_past(server, last(server) + 5)
    (tmp_path / "stop").touch()
    assert server.end().startswith("ack")
    acknowledged = server.acknowledged()
    assert [each.version for each in acknowledged] == list(range(len(acknowledged)))
    assert {each.epoch for each in acknowledged} == {1}, "it never lost the lead"
    found = models(own_postgres.url("patient"))
    assert found == {each.version: each.model for each in acknowledged} == undisturbed(len(found))
    server.close()


def test_a_server_without_patience_stops_and_the_next_one_finds_all_that_was_acknowledged(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    acknowledged: dict[int, str] = {}
    for number in range(NUM_RESTARTS):
        server = Server(f"server-{number}", own_postgres, "impatient", tmp_path, 0.0, LEASE_SECONDS)
        wait_until_past(server, len(acknowledged) + 5)
        kill_and_restart(own_postgres)
        said = server.end()  # which write it was that failed, a row's or a snapshot's, is chance
        assert said.startswith("end ")
        assert "/runs/impatient" in said
        acknowledged |= {each.version: each.model for each in server.acknowledged()}
        server.close()
    found = models(own_postgres.url("impatient"))
    assert acknowledged.items() <= found.items()
    assert found == undisturbed(len(found))
