"""What a standby tells Prometheus. Needs the extra `ops`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from secureafl.server.standby.service import StandbyService

STANDBY_METRICS = {
    "secureafl_standby_lag_rows": ("gauge", "Rows of the log that the standby has yet to repeat."),
    "secureafl_standby_lag_seconds": ("gauge", "Time since the standby last had every row; 0 if it has."),
    "secureafl_standby_rows_total": ("counter", "Rows that the standby has repeated and checked."),
    "secureafl_standby_takeovers_total": ("counter", "Servers that the standby started and that took the lease."),
    "secureafl_standby_model_version": ("gauge", "Version of the standby's own model."),
}
"""Name -> (kind, meaning)."""


class StandbyCollector(Collector):
    """Turns the state of a standby into what Prometheus scrapes."""

    def __init__(self, service: StandbyService) -> None:
        self._service = service

    def collect(self) -> Iterator[Family]:
        service, lag = self._service, self._service.lag
        found = {
            "secureafl_standby_lag_rows": None if lag is None else lag.rows,
            "secureafl_standby_lag_seconds": None if lag is None else lag.seconds,
            "secureafl_standby_rows_total": service.num_rows,
            "secureafl_standby_takeovers_total": service.num_takeovers,
            "secureafl_standby_model_version": service.version,
        }
        for name, (kind, about) in STANDBY_METRICS.items():
            if (value := found[name]) is not None:
                family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                yield family(name, about, value=value)
