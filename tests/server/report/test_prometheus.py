"""Scrapes over real HTTP, read by Prometheus' own parser."""

import contextlib
import os
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.end_to_end.child_processes import HOST, free_port
from tests.scrapes import scrape

from secureafl import Layout, Machine, Reason
from secureafl.errors import SettingsError
from secureafl.server import Federation, FederationSettings
from secureafl.server.record.entries import Event
from secureafl.server.report import prometheus
from secureafl.server.report.prometheus import DISK_METRICS, MAX_CONNECTIONS, METRICS, MetricsServer, TelemetryCollector

LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})


def federation(**settings: object) -> Federation:
    made = FederationSettings(**settings)  # type: ignore[arg-type]
    machine = Machine(made.make_defense(2), np.zeros(2, np.float32), made.machine())
    return Federation(machine, LAYOUT, made, evaluate=lambda arrays: {"error": float(arrays["w"].sum())})


@contextlib.contextmanager
def served(run: Federation) -> Iterator[str]:
    server = MetricsServer(TelemetryCollector(run.telemetry, run.settings.run_dir), host=HOST, port=free_port())
    try:
        yield server.url
    finally:
        server.close()


def answer_all(run: Federation, names: list[str]) -> None:
    """Each client answers once; the third sends what cannot be judged, and one more never answers."""
    for k, name in enumerate(names):
        run.note(name, Event.JOINED)
        assignment = run.assign(name)
        assert assignment is not None
        run.deliver(assignment, Reason.MALFORMED if k == 2 else np.full(2, 0.1 * k, np.float32))
    lost = run.assign(names[0])
    assert lost is not None
    run.give_up(lost, Event.EXPIRED, "too slow")
    run.run()


def test_a_scrape_has_every_figure(tmp_path: Path) -> None:
    run = federation(stop_after_updates=3, run_dir=tmp_path, max_refusals=1)
    with served(run) as url:
        waiting = scrape(url)
        answer_all(run, ["a", "b", "c", "d"])
        found = scrape(url)
    run.close()
    assert waiting["secureafl_arrivals_total{reason=malformed}{verdict=refused}"] == 0.0
    assert found["secureafl_arrivals_total{reason=first-contact}{verdict=accepted}"] == 3.0
    assert found["secureafl_arrivals_total{reason=malformed}{verdict=refused}"] == 1.0
    assert found["secureafl_events_total{event=expired}"] == 1.0
    assert found["secureafl_events_total{event=quarantined}"] == 1.0
    assert found["secureafl_models_sent_total"] == 5.0
    assert found["secureafl_model_version"] == 3.0
    assert found["secureafl_staleness_versions_bucket{le=1.0}"] == 2.0, "all were given version 0"
    assert found["secureafl_staleness_versions_count"] == found["secureafl_step_seconds_count"] == 3.0
    assert found["secureafl_snapshot_seconds_count"] == 1.0
    assert found["secureafl_clients_known"] == 4.0
    assert found["secureafl_clients_present"] == 3.0
    assert found["secureafl_clients_quarantined"] == 1.0
    assert found["secureafl_clients_excluded"] == 0.0
    assert found["secureafl_evaluation_version"] == 3.0
    assert "secureafl_evaluation{metric=error}" in found
    assert found["secureafl_journal_bytes"] > 0.0
    assert found["secureafl_disk_free_bytes"] > 0.0
    assert found["process_resident_memory_bytes"] > 0.0, "prometheus-client's own figures of the process"


def test_every_metric_of_the_list_is_there_once_a_run_is_under_way(tmp_path: Path) -> None:
    run = federation(stop_after_updates=7, run_dir=tmp_path)
    with served(run) as url:
        answer_all(run, ["a", "b", "c", "d", "a", "b", "c", "d"])
        names = {name.partition("{")[0] for name in scrape(url)}
    run.close()
    for metric in METRICS:
        assert (f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name) in names
    assert names >= DISK_METRICS.keys()


def test_a_thousand_clients_make_no_more_series_than_ten() -> None:
    sizes = []
    for count in (10, 1000):
        run = federation(stop_after_updates=count - 1, defense="asyncsgd")
        with served(run) as url:
            answer_all(run, [f"client-{k}" for k in range(count)])
            sizes.append(len(scrape(url)))
        run.close()
    assert sizes[0] == sizes[1]


def test_a_scrape_waits_for_no_step() -> None:
    run = federation(defense="asyncsgd")
    with served(run) as url, run._lock:  # as while a long step is under way
        assert scrape(url)["secureafl_model_version"] == 0.0
    run.close()


def test_a_metric_that_fails_costs_the_scrape_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = federation(stop_after_updates=3, defense="asyncsgd")
    with served(run) as url:
        with monkeypatch.context() as broken:
            broken.setattr(run.telemetry, "read", lambda: 1 / 0)
            with pytest.raises(urllib.error.HTTPError, match="500"):
                scrape(url)
        thread = threading.Thread(target=answer_all, args=[run, ["a", "b", "c", "d"]])
        thread.start()
        thread.join(20)
        assert scrape(url)["secureafl_model_version"] == 3.0
    run.close()


def open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (a path of each would open one more)


@contextlib.contextmanager
def connections(url: str, count: int) -> Iterator[list[socket.socket]]:
    port = int(url.split(":")[2].partition("/")[0])
    held = [socket.create_connection((HOST, port), timeout=5.0) for _ in range(count)]
    try:
        yield held
    finally:
        for connection in held:
            connection.close()


def scrape_within(url: str, seconds: float) -> dict[str, float]:
    """A scrape, tried again until there is room for it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return scrape(url)
        time.sleep(0.05)
    raise AssertionError(f"no scrape in {seconds} s")


def ended(connection: socket.socket) -> bool:
    """Whether the server has closed it; waits for that."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def sent_until_ended(connection: socket.socket, seconds: float) -> bool:
    """Send a byte now and then; whether the server ends this in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            connection.sendall(b"x")
        except (BrokenPipeError, ConnectionResetError):
            return True
        time.sleep(0.05)
    return False


def test_idle_connections_take_few_files_and_threads_and_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "CONNECTION_SECONDS", 2.0)
    run = federation(defense="asyncsgd")
    with served(run) as url:
        scrape(url)
        files, threads = open_files(), threading.active_count()
        with connections(url, 300) as held:
            assert open_files() - files - len(held) <= MAX_CONNECTIONS + 1, "one may just be turned away"
            assert threading.active_count() - threads <= MAX_CONNECTIONS + 1
            assert scrape_within(url, 5.0)["secureafl_model_version"] == 0.0
            assert all(map(ended, held))
    assert open_files() <= files
    assert threading.active_count() < threads
    run.close()


def test_a_request_that_comes_byte_by_byte_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prometheus, "CONNECTION_SECONDS", 1.0)
    run = federation(defense="asyncsgd")
    with served(run) as url, connections(url, 1) as (slow,):
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert sent_until_ended(slow, 5.0)
    run.close()
    assert capfd.readouterr().err == ""


def test_closing_waits_for_no_connection() -> None:
    run = federation(defense="asyncsgd")
    files, threads = open_files(), threading.active_count()
    with contextlib.ExitStack() as held:
        with served(run) as url:
            (idle,) = held.enter_context(connections(url, 1))
            scrape(url)  # by now the idle one has its thread
            began = time.monotonic()
        assert time.monotonic() - began < prometheus.CONNECTION_SECONDS / 2
        assert ended(idle)
    assert (open_files(), threading.active_count()) == (files, threads)
    run.close()


def test_a_busy_port_is_one_line_that_says_what_to_do() -> None:
    run = federation(defense="asyncsgd")
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"{HOST}:{port}.*set another metrics-port") as raised:
            MetricsServer(TelemetryCollector(run.telemetry, None), host=HOST, port=port)
    assert "\n" not in str(raised.value)
    run.close()
