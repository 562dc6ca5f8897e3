"""What a live server tells the outside: metrics for Prometheus, figures for sinks. Neither can hold up or end a run."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from secureafl.engines.engine_settings import EngineSettings
from secureafl.errors import SettingsError
from secureafl.server import Federation
from secureafl.server.report.sinks import Facts, Feed, check_sinks

NOT_THE_RUN = {"metrics_port", "metrics_host", "sinks", "sink_seconds", "keys_file", "names_file"}
"""Settings that say nothing about how the run learns."""


def check_reporting(settings: EngineSettings) -> None:
    """Raise for what is missing, before anything is begun."""
    check_sinks(settings.sinks)
    if settings.metrics_port and importlib.util.find_spec("prometheus_client") is None:
        raise SettingsError('metrics-port needs one more package: pip install "secureafl[ops]"')


@contextlib.contextmanager
def reporting(federation: Federation, settings: EngineSettings, console: Console) -> Iterator[None]:
    """Answer scrapes and feed sinks, as the settings say."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with contextlib.ExitStack() as stack:
        if settings.metrics_port:
            _serve_metrics(federation, settings, say, stack)
        for sink in settings.sinks:
            feed = Feed(sink, federation.telemetry, name=run_name(settings), facts=_facts(settings), say=say)
            feed.start(settings.sink_seconds)
            stack.callback(feed.close)
        yield


def _serve_metrics(
    federation: Federation, settings: EngineSettings, say: Callable[[str], None], stack: contextlib.ExitStack
) -> None:
    from secureafl.server.report.prometheus import MetricsServer, TelemetryCollector

    try:
        collector = TelemetryCollector(federation.telemetry, settings.run_dir)
        server = MetricsServer(collector, host=settings.metrics_host, port=settings.metrics_port)
    except SettingsError as error:
        say(str(error))
        return
    stack.callback(server.close)
    say(f"metrics: {server.url}")


def run_name(settings: EngineSettings) -> str:
    """The run as sinks show it: its own name, or the defense and the time."""
    if (store := settings.store()) is not None:
        return store.name
    return f"{settings.defense}-{time.strftime('%Y%m%d-%H%M%S')}"


def _facts(settings: EngineSettings) -> Facts:
    return settings.model_dump(mode="json", exclude=NOT_THE_RUN)
