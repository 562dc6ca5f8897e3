"""An operator's wish to resume, in a folder and in a database."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.server.recorded_runs import record
from typer.testing import CliRunner

from secureafl.cli import app
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.running import conduct
from secureafl.errors import StoreError
from secureafl.layout import Layout
from secureafl.server import Federation, Result
from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.resumption import ask_to_resume, is_asked_to_resume

MODEL = {"w": np.zeros(3, np.float32)}


class Eager:
    """A client that answers at once, on the thread that asks."""

    def __init__(self, federation: Federation) -> None:
        for _ in range(20):
            assignment = federation.assign("only-one")
            assert assignment is not None
            federation.deliver(assignment, np.array([1, 2, 3], np.float32))

    def close(self) -> None:
        """Nothing to do."""


def federate(settings: EngineSettings) -> Result:
    def serve(federation: Federation, layout: Layout) -> Eager:
        return Eager(federation)

    return conduct(MODEL, settings, serve, console=Console(quiet=True))


@pytest.fixture(params=["folder", "database"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> EngineSettings:
    place = tmp_path / "run" if request.param == "folder" else request.getfixturevalue("run_url")
    return EngineSettings(run_dir=place, stop_after_updates=10, client_returns="gradient")


def test_the_next_server_resumes_once(settings: EngineSettings) -> None:
    assert settings.run_dir is not None
    federate(settings)
    with pytest.raises(StoreError, match="already holds a run"):
        federate(settings)
    assert ask_to_resume(settings.run_dir) == 10
    assert is_asked_to_resume(settings.store())
    more = settings.model_copy(update={"stop_after_updates": 15})
    assert federate(more).version == 15
    assert not is_asked_to_resume(settings.store())
    with pytest.raises(StoreError, match="already holds a run"):
        federate(more)


def test_a_wish_outlasts_a_start_that_failed(settings: EngineSettings) -> None:
    assert settings.run_dir is not None
    federate(settings)
    ask_to_resume(settings.run_dir)
    with pytest.raises(StoreError, match="was started with"):
        federate(settings.model_copy(update={"server_lr": 0.5}))
    assert is_asked_to_resume(settings.store())


def test_a_run_that_is_in_use_or_not_there_cannot_be_wished_for(tmp_path: Path) -> None:
    record(tmp_path / "run", 5).journal.close()
    hold = store_of(tmp_path / "run").hold()
    with pytest.raises(StoreError, match="in use"):
        ask_to_resume(tmp_path / "run")
    hold.release()
    with pytest.raises(StoreError, match="holds no run"):
        ask_to_resume(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_the_command_says_from_where(run_url: RunUrl, tmp_path: Path) -> None:
    for place in (tmp_path / "run", run_url):
        record(place, 5).journal.close()
        done = CliRunner().invoke(app, ["resume", str(place)])
        assert done.exit_code == 0, done.output
        assert f"The next server with run-dir = {place} goes on from version 5 of the model." in done.output
