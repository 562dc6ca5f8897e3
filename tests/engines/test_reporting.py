"""Metrics and sinks as both engines start them: through `conduct`, with clients that are threads."""

import importlib
import importlib.util
import io
import socket
import threading
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.end_to_end.child_processes import HOST, free_port
from tests.scrapes import scrape

from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.flower import read_run_config
from secureafl.engines.nvflare import NVFlareSettings
from secureafl.engines.reporting import run_name
from secureafl.engines.running import conduct
from secureafl.errors import SettingsError
from secureafl.layout import Layout
from secureafl.server import Federation, Result

MODEL = {"w": np.zeros(2, np.float32)}


class Client:
    """One client that answers until it is closed."""

    def __init__(self, federation: Federation, after_each: Callable[[], None]) -> None:
        self._federation = federation
        self._after_each = after_each
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while (assignment := self._federation.assign("client")) is not None:
            self._federation.deliver(assignment, np.full(2, -0.1, np.float32)).result(20)
            self._after_each()

    def close(self) -> None:
        self._thread.join(20)


def federate(after_each: Callable[[], None] = lambda: None, **settings: Any) -> tuple[Result, str]:
    """The result, and what was printed."""
    made = EngineSettings(**{"defense": "asyncsgd", "stop_after_updates": 20, "evaluate_every": 5, **settings})
    console = Console(file=io.StringIO(), width=200)

    def serve(federation: Federation, layout: Layout) -> Client:
        return Client(federation, after_each)

    result = conduct(MODEL, made, serve, evaluate=lambda arrays: {"mean": float(arrays["w"].mean())}, console=console)
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def test_a_live_server_is_scraped_while_it_works_and_lets_go_of_its_port() -> None:
    port, seen = free_port(), list[dict[str, float]]()
    url = f"http://{HOST}:{port}/metrics"
    _, printed = federate(lambda: seen.append(scrape(url)), metrics_port=port)
    assert f"metrics: {url}" in printed
    assert [int(found["secureafl_model_version"]) for found in seen[:10]] == list(range(1, 11))
    with pytest.raises(urllib.error.URLError, match="refused"):
        scrape(url)


def test_a_busy_port_is_one_line_and_the_run_goes_on() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        result, printed = federate(metrics_port=other.getsockname()[1])
    assert result.version == 20
    assert len([line for line in printed.splitlines() if "set another metrics-port" in line]) == 1


def test_a_sink_gets_the_evaluations_and_the_servers_figures(tmp_path: Path) -> None:
    run_dir = tmp_path / "today"
    result, _ = federate(sinks=f"tensorboard:{tmp_path / 'board'}", run_dir=run_dir)
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    reader = events.EventAccumulator(str(tmp_path / "board" / "today"))
    reader.Reload()
    scores = {point.step: point.value for point in reader.Scalars("evaluation/mean")}
    assert scores == {done.version: pytest.approx(done.metrics["mean"], rel=1e-6) for done in result.evaluations}
    assert reader.Scalars("server/accepted")[-1].step == 20


def test_a_sink_that_cannot_be_opened_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result, printed = federate(sinks=[f"tensorboard:{tmp_path / 'file'}"], sink_seconds=0.01)
    assert result.version == 20
    assert len([line for line in printed.splitlines() if "failed, and the run goes on" in line]) == 1


def test_what_is_not_installed_is_said_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(SettingsError, match=r'pip install "secureafl\[ops\]"'):
        federate(metrics_port=9464, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_are_the_same_on_both_engines() -> None:
    flower = read_run_config(
        {"secureafl.metrics-port": 9464, "secureafl.sinks": "tensorboard:a,wandb:b", "secureafl.metrics-host": "::1"}
    )
    nvflare = NVFlareSettings(metrics_port=9464, sinks=("tensorboard:a", "wandb:b"), metrics_host="::1")
    for settings in (flower, nvflare):
        assert (settings.metrics_port, settings.metrics_host) == (9464, "::1")
        assert settings.sinks == ("tensorboard:a", "wandb:b")
    assert read_run_config({"secureafl.sinks": ""}).sinks == ()
    with pytest.raises(SettingsError, match="did you mean 'mlflow'"):
        NVFlareSettings(sinks=("mlflo:x",))


def test_a_run_without_a_folder_is_named_by_its_defense() -> None:
    assert run_name(EngineSettings(defense="kardam")).startswith("kardam-")
    assert run_name(EngineSettings(run_dir=Path("runs/today"))) == "today"
