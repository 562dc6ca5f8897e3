"""The figures for Prometheus, over HTTP. Needs the extra `ops`.

`METRICS` is the whole list: what a scrape holds, and what the page `how-to/metrics` says of it. No metric has a label
per client, so a federation of many costs a monitoring system no more than one of few.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Literal, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from secureafl.errors import SettingsError
from secureafl.server.live.telemetry import Histogram, Reading, Telemetry
from secureafl.server.record.address import Place
from secureafl.server.record.entries import Event

MAX_CONNECTIONS = 16
"""Scrapers at a time; further ones are closed at once."""
CONNECTION_SECONDS = 5.0
"""How long one may take, from connecting to the last byte."""

Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]
"""A connection, as `socketserver` has it: the pair is for datagrams, which do not come here."""
Labelled: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and the figure."""
Value: TypeAlias = float | Labelled | Histogram | None
"""None: there is nothing to say, and the scrape does not say it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One name in a scrape."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    read: Callable[[Reading], Value]
    labels: tuple[str, ...] = ()

    def family(self, reading: Reading) -> Family | None:
        """As Prometheus takes it."""
        value = self.read(reading)
        if value is None:
            return None
        if isinstance(value, Histogram):
            return _histogram(self.name, self.about, value)
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.about, labels=self.labels)
        for labels, number in [((), value)] if isinstance(value, int | float) else value:
            family.add_metric(labels, number)
        return family


def _histogram(name: str, about: str, value: Histogram) -> Family:
    family = HistogramMetricFamily(name, about)
    seen, buckets = 0, []
    for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    family.add_metric((), buckets, value.total)
    return family


METRICS = (
    Metric(
        "secureafl_arrivals_total",
        "counter",
        "Updates by verdict: `accepted`, `rejected` by the defense, or `refused` because they could not be judged.",
        lambda reading: reading.arrivals.items(),
        ("verdict", "reason"),
    ),
    Metric(
        "secureafl_models_sent_total",
        "counter",
        "Models handed out to clients.",
        lambda reading: reading.events[Event.ISSUED],
    ),
    Metric(
        "secureafl_events_total",
        "counter",
        "All other rows of the journal: `joined`, `left`, `returned`, `expired`, `client-error`, `engine-trouble`, …",
        lambda reading: [((str(event),), n) for event, n in reading.events.items() if event is not Event.ISSUED],
        ("event",),
    ),
    Metric(
        "secureafl_staleness_versions",
        "histogram",
        "How many versions old the model was that an update was computed on.",
        lambda reading: reading.staleness,
    ),
    Metric(
        "secureafl_step_seconds",
        "histogram",
        "Time to judge an update and to move the model.",
        lambda reading: reading.times["step"],
    ),
    Metric(
        "secureafl_journal_seconds",
        "histogram",
        "Time to make an arrival durable, the model's hash included.",
        lambda reading: reading.times["journal"],
    ),
    Metric(
        "secureafl_snapshot_seconds",
        "histogram",
        "Time to write a snapshot of the whole state.",
        lambda reading: reading.times["snapshot"],
    ),
    Metric("secureafl_model_version", "gauge", "Version of the model: arrivals so far.", lambda r: r.version),
    Metric(
        "secureafl_seconds_since_arrival",
        "gauge",
        "Time since the last arrival; since the start while there is none.",
        lambda reading: reading.seconds_since_arrival,
    ),
    Metric("secureafl_run_seconds", "gauge", "Time since the run began.", lambda reading: reading.seconds),
    Metric(
        "secureafl_clients_known", "gauge", "Clients that ever got a model.", lambda reading: reading.standing.known
    ),
    Metric("secureafl_clients_present", "gauge", "Clients that joined and did not leave.", lambda r: r.present),
    Metric(
        "secureafl_clients_excluded",
        "gauge",
        "Known clients without a vote: against the consensus, or rejected too often in a row. SecureAFL only.",
        lambda reading: reading.standing.excluded,
    ),
    Metric(
        "secureafl_clients_quarantined",
        "gauge",
        "Clients that get no more work (`max-refusals`).",
        lambda reading: reading.standing.quarantined,
    ),
    Metric(
        "secureafl_tickets_open",
        "gauge",
        "Models that are out and not yet answered.",
        lambda reading: reading.standing.tickets_open,
    ),
    Metric(
        "secureafl_updates_waiting",
        "gauge",
        "Updates that came and wait to be judged: clients are faster than the server.",
        lambda reading: reading.standing.updates_waiting,
    ),
    Metric(
        "secureafl_lipschitz_factor",
        "gauge",
        "How abruptly the sender of the last measured update changed. SecureAFL and Kardam.",
        lambda reading: reading.lipschitz_factor,
    ),
    Metric(
        "secureafl_lipschitz_threshold",
        "gauge",
        "The largest such factor that was accepted then.",
        lambda reading: reading.threshold,
    ),
    Metric(
        "secureafl_evaluation",
        "gauge",
        "The metrics of the last evaluation, by the names that `evaluate` gave them.",
        lambda reading: [((name,), n) for name, n in reading.latest.metrics.items()] if reading.latest else None,
        ("metric",),
    ),
    Metric(
        "secureafl_evaluation_version",
        "gauge",
        "The version that was evaluated.",
        lambda reading: reading.latest.version if reading.latest else None,
    ),
)
"""What comes from the telemetry."""

DISK_METRICS = {
    "secureafl_journal_bytes": "Size of the run's database, with what is not yet merged into it.",
    "secureafl_disk_free_bytes": "Space left where the run is kept.",
}
"""What comes from the run's folder: gauges, there when `run-dir` is one."""


class TelemetryCollector(Collector):
    """Turns a reading into what Prometheus scrapes. It takes no lock of the federation."""

    def __init__(self, telemetry: Telemetry, run_dir: Place | None) -> None:
        self._telemetry = telemetry
        self._run_dir = run_dir

    def collect(self) -> Iterator[Family]:
        reading = self._telemetry.read()
        for metric in METRICS:
            if (family := metric.family(reading)) is not None:
                yield family
        for name, value in _disk(self._run_dir).items():
            yield GaugeMetricFamily(name, DISK_METRICS[name], value=value)


def _disk(run_dir: Place | None) -> dict[str, float]:
    if not isinstance(run_dir, Path):
        return {}
    try:
        size = sum(path.stat().st_size for path in run_dir.glob("run.db*"))
        return {"secureafl_journal_bytes": size, "secureafl_disk_free_bytes": shutil.disk_usage(run_dir).free}
    except OSError:  # the folder went away, or a file while it was looked at
        return {}


class MetricsServer:
    """Answers scrapes on threads of its own until it is closed."""

    def __init__(self, collector: Collector, *, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = BoundedServer(host, port)
        except OSError as error:
            raise SettingsError(
                f"no metrics: cannot listen on {host}:{port} ({error.strerror or error}). The run goes on without; to "
                "have metrics, free that port or set another metrics-port, and resume the run"
            ) from None
        self._server.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.url = f"http://{host}:{port}/metrics"

    def close(self) -> None:
        """Let go of the port, and of every connection."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BoundedServer(ThreadingMixIn, WSGIServer):
    """An HTTP server with few connections at a time, none of them for long.

    It shares its process with the training: connections that are left open, or send a byte now and then, must not use
    up files and threads.
    """

    request_queue_size = 128  # those that the system keeps until they are accepted; they take no files

    def __init__(self, host: str, port: int) -> None:
        self._ends: dict[socket.socket, float] = {}  # open connection -> when it is closed at the latest
        self._lock = threading.Lock()  # nobody ends a connection while its thread closes it
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        super().__init__((host, port), _QuietHandler)

    def verify_request(self, request: Request, client_address: object) -> bool:
        """Whether there is room for one more connection. If not, it is closed at once."""
        return len(self._ends) < MAX_CONNECTIONS

    def process_request(self, request: Request, client_address: Any) -> None:
        assert isinstance(request, socket.socket)
        self._ends[request] = time.monotonic() + CONNECTION_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            super().shutdown_request(request)
            self._ends.pop(request, None)

    def service_actions(self) -> None:
        """Called about twice a second: end what took too long."""
        super().service_actions()
        self._end_connections(time.monotonic())

    def server_close(self) -> None:
        self._end_connections(math.inf)
        super().server_close()  # waits for their threads

    def handle_error(self, request: Request, client_address: object) -> None:
        """A connection that broke is no news."""

    def _end_connections(self, now: float) -> None:
        with self._lock:
            for connection in [each for each, end in self._ends.items() if end <= now]:
                with contextlib.suppress(OSError):  # the other side has gone
                    connection.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it


class _QuietHandler(WSGIRequestHandler):
    """Leaves scrapes out of the server's log."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name in the base class)
        pass
