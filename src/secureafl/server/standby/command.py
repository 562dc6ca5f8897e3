"""A standby as a service: with metrics, until the run is finished or a signal comes."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence

from secureafl.errors import SettingsError
from secureafl.server.record.address import RunUrl, store_of


def run_standby(
    url: RunUrl,
    command: Sequence[str],
    *,
    start_seconds: float,
    host: str,
    port: int | None,
    say: Callable[[str], None],
) -> None:
    """Follow the run, and let `command` start the next server when its leader is gone."""
    store_of(url)  # says which package is missing
    from secureafl.server.standby.service import StandbyService

    if port is not None and importlib.util.find_spec("prometheus_client") is None:
        raise SettingsError('--metrics-port needs one more package: pip install "secureafl[ops]"')
    service = StandbyService(url, command, start_seconds=start_seconds, say=say)
    with contextlib.ExitStack() as stack:
        if port is not None:
            from secureafl.server.report.prometheus import MetricsServer
            from secureafl.server.standby.metrics import StandbyCollector

            metrics = MetricsServer(StandbyCollector(service), host=host, port=port)
            stack.callback(metrics.close)
            say(f"metrics: {metrics.url}")
        with service.stopped_by_signals():
            service.run()
