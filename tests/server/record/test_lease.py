"""One server leads a run in a database: who lost the lead can write nothing, and knows it in time."""

import os
import threading
import time

import numpy as np
import psycopg
import pytest
from tests.postgres import PostgresServer
from tests.server.record.test_run import FACTS, advance, machine, settings, state, undisturbed

from secureafl import Layout, Machine
from secureafl.defenses import AsyncSGD
from secureafl.errors import StoreError
from secureafl.server import Federation, FederationSettings
from secureafl.server.record.address import RunUrl
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.lease import USABLE, Lease
from secureafl.server.record.postgres import PostgresStore
from secureafl.server.record.run import Run

SECONDS = 5.0  # a busy machine renews it in time
LEFT = Entry(2.0, 4, "hospital", Event.LEFT, "node gone")


def stop_renewing(lease: Lease) -> None:
    """As when the process is stopped, but for its clock: it takes itself for the leader for ever."""
    lease._stopped.set()
    assert lease._renewer is not None
    lease._renewer.join()
    lease._until = float("inf")


def lead(url: RunUrl) -> PostgresStore:
    store = PostgresStore(url, lease_seconds=SECONDS)
    store.hold()
    return store


def begin(url: RunUrl) -> Run:
    run = Run(machine(), settings(url, lease_seconds=SECONDS), facts=FACTS)
    advance(run, 5)
    run.journal.commit()
    return run


def resume(url: RunUrl) -> Run:
    return Run.resume(machine(), settings(url, lease_seconds=SECONDS), facts=FACTS)


def lease_of(run: Run) -> Lease:
    assert isinstance(run._hold, Lease)
    return run._hold


def test_a_leader_that_renews_is_not_replaced_and_is_named(run_url: RunUrl) -> None:
    run = begin(run_url)
    time.sleep(1.5 * SECONDS)
    with pytest.raises(StoreError, match=f"is in use by pid {os.getpid()} on "):
        resume(run_url)
    advance(run, 1)
    run.close()


def test_a_released_lease_is_taken_at_once_under_the_next_epoch(run_url: RunUrl) -> None:
    first = lead(run_url)
    first.lease.release()
    second = lead(run_url)
    assert (first.lease.epoch, second.lease.epoch) == (1, 2)
    second.lease.release()


def test_who_lost_the_lead_can_write_nothing_and_is_told_who_leads(run_url: RunUrl, postgres: PostgresServer) -> None:
    old = begin(run_url)
    stop_renewing(lease_of(old))
    new = resume(run_url)
    assert state(new) == undisturbed(5)
    before = postgres.execute(run_url, "SELECT count(*), max(number) FROM log")
    files = postgres.execute(run_url, "SELECT name, part FROM files ORDER BY name, part")
    refused = rf"is led by pid {os.getpid()} on .* now \(epoch 2, this server had 1\)"
    with pytest.raises(StoreError, match=refused):
        advance(old, 1)
    with pytest.raises(StoreError, match=refused):
        old.journal.append(LEFT)  # nor does it try again
    assert old.store is not None
    with pytest.raises(StoreError, match=refused):
        old.store.files.write("snapshots/000000000006.safetensors", [b"of the old leader"])
    with pytest.raises(StoreError, match=refused):
        old.store.files.remove("snapshots/first.safetensors")
    with pytest.raises(StoreError, match=refused):
        old.store.clear()
    old.close()
    assert postgres.execute(run_url, "SELECT count(*), max(number) FROM log") == before
    assert postgres.execute(run_url, "SELECT name, part FROM files ORDER BY name, part") == files
    advance(new, 5)
    assert state(new) == undisturbed(10)
    new.close()


def test_the_epoch_alone_refuses_a_write(run_url: RunUrl) -> None:
    """The next leader has written nothing yet, so the head is still the old one's."""
    old = begin(run_url)
    stop_renewing(lease_of(old))
    new = lead(run_url)
    with pytest.raises(StoreError, match="is led by"):
        old.journal.append(LEFT)
    old.close()
    new.lease.release()


def test_a_transaction_that_its_server_left_open_does_not_hold_up_the_next_leader(run_url: RunUrl) -> None:
    old = begin(run_url)
    stop_renewing(lease_of(old))
    assert old.store is not None
    database = old.store.connect()  # type: ignore[attr-defined]
    database.execute("BEGIN")
    database.execute("UPDATE head SET written = clock_timestamp()")  # stopped here
    new = resume(run_url)
    advance(new, 1)
    with pytest.raises(psycopg.Error, match="terminating connection"):
        database.execute("COMMIT")
    database.close()
    old.close()
    new.close()


def test_a_write_that_its_server_was_stopped_in_does_not_hold_up_the_next_leader(run_url: RunUrl) -> None:
    """Statements that are sent together are no idle transaction to PostgreSQL."""
    old = begin(run_url)
    stop_renewing(lease_of(old))
    assert old.store is not None
    database = old.store.connect()  # type: ignore[attr-defined]
    with pytest.raises(psycopg.Error), database.pipeline():  # noqa: PT012
        database.execute("BEGIN")
        database.execute("UPDATE head SET written = clock_timestamp() RETURNING epoch").fetchone()  # stopped here
        new = resume(run_url)
        advance(new, 1)
        database.execute("COMMIT")
    database.close()
    old.close()
    assert new.machine.model.version == 6
    new.close()


def test_a_head_that_somebody_else_wrote_ends_the_run(run_url: RunUrl, postgres: PostgresServer) -> None:
    run = begin(run_url)
    postgres.execute(run_url, "UPDATE head SET number = number - 1")
    with pytest.raises(StoreError, match="the head is not the one that this server wrote"):
        advance(run, 1)
    run.close()


def test_a_leader_that_cannot_renew_stops_itself_before_its_lease_ends(
    run_url: RunUrl, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off() -> None:
        raise psycopg.OperationalError("connection refused")

    run = begin(run_url)
    monkeypatch.setattr(lease_of(run), "_connect", cut_off)
    postgres.execute(
        run_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'secureafl'"
        " AND query LIKE 'UPDATE lease%'",
    )
    with pytest.raises(StoreError, match=f"could not be reached for {USABLE * SECONDS:g} s to renew"):  # noqa: PT012
        while True:
            run.issue("a")
            time.sleep(0.01)
    stopped_at = time.time() + lease_of(run)._until - time.monotonic()
    [(ends_at,)] = postgres.execute(run_url, "SELECT extract(epoch FROM expires)::float8 FROM lease")
    assert stopped_at < ends_at, "nobody else could lead yet"
    with pytest.raises(StoreError, match="could not be reached"):
        run.receive(0, np.zeros(12, np.float32))
    run.close()


def test_a_federation_that_has_nothing_to_do_still_notices_that_it_lost_the_lead(run_url: RunUrl) -> None:
    layout = Layout.of({"w": np.zeros(2, np.float32)})
    chosen = FederationSettings(defense="asyncsgd", run_dir=run_url, lease_seconds=SECONDS, progress_seconds=1000.0)
    federation = Federation(Machine(AsyncSGD(2), np.zeros(2, np.float32), chosen.machine()), layout, chosen)
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            federation.run()
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=serve)
    consumer.start()
    lease = lease_of(federation._run)
    lease._stopped.set()  # it renews no more, and its clock goes on
    consumer.join(60.0)
    assert isinstance(raised[0], StoreError)
    assert federation.assign("a") is None
    federation.close()


def test_two_servers_that_begin_the_same_run_at_once_do_not_both_get_it(run_url: RunUrl) -> None:
    results: list[Run | StoreError] = []

    def start() -> None:
        try:
            results.append(Run(machine(), settings(run_url, lease_seconds=SECONDS), facts=FACTS))
        except StoreError as error:
            results.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    [led] = [found for found in results if isinstance(found, Run)]
    [refused] = [found for found in results if isinstance(found, StoreError)]
    assert "is in use by" in str(refused)
    led.close()
