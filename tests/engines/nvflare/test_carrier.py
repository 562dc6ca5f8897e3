"""The NVFlare adapter at the seam of its proxies: everything but NVFlare's own processes."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvflare.apis.signal import Signal
from nvflare.collab import CollabCallError
from rich.console import Console
from safetensors.numpy import load

from secureafl.engines.nvflare import AsyncClient, NVFlareSettings, run_federation
from secureafl.engines.nvflare import app as nvflare_app
from secureafl.engines.nvflare import client as nvflare_client
from secureafl.engines.nvflare.codec import Message, pack
from secureafl.server import Result
from secureafl.server.record.entries import Event
from secureafl.server.record.sqlite import read_journal
from secureafl.types import NamedArrays
from secureafl.wire import Feedback, Wire, is_compressed

MODEL = {"w": np.zeros(3, np.float32)}
QUICK: dict[str, Any] = {"discovery_seconds": 0.02, "retry_seconds": 0.02, "ping_seconds": 0.1}


class Site:
    """A proxy whose `reply` is a function; `gone` sites answer nothing at all."""

    def __init__(self, name: str, reply: Callable[[Message], Any]) -> None:
        self.name = name
        self._reply = reply
        self.gone = False
        self.backend = SimpleNamespace(abort_signal=Signal())

    def __call__(self, timeout: float) -> "Site":
        return self

    def reply(self, dispatch: Message) -> Any:
        if self.gone:
            raise CollabCallError(self.name, "reply", TimeoutError("timed out"))
        try:
            return self._reply(dispatch)
        except ValueError as error:
            raise CollabCallError(self.name, "reply", str(error), remote_traceback="…") from error

    def ping(self) -> bool:
        if self.gone:
            raise CollabCallError(self.name, "ping", TimeoutError("timed out"))
        return True


class FakeContext:
    """The part of Collab's context that is used."""

    def __init__(self, sites: list[Site]) -> None:
        self.clients = sites
        self.aborted = threading.Event()

    def is_aborted(self) -> bool:
        return self.aborted.is_set()


def honest(dispatch: Message) -> Message:
    weights = load(dispatch["arrays"])["w"]
    return {"arrays": pack({"w": weights + 0.5 * (2.0 - weights)})}


def raising(dispatch: Message) -> Message:
    raise ValueError("cannot train")


def federate(
    monkeypatch: pytest.MonkeyPatch, context: FakeContext, run_dir: Path, **settings: Any
) -> tuple[Result, dict[str, set[str]]]:
    monkeypatch.setattr(nvflare_app, "current_context", lambda: context)
    made = NVFlareSettings(**{**QUICK, "stop_after_seconds": 20.0, "run_dir": run_dir, **settings})
    result = run_federation(MODEL, made, console=Console(quiet=True))
    journal = read_journal(run_dir / "run.db")
    events: dict[str, set[str]] = {}
    for row in journal.entries():
        reason = f": {row.reason}" if row.event not in {Event.ARRIVAL, Event.ISSUED} and row.reason else ""
        events.setdefault(row.client, set()).add(f"{row.event}{reason}")
    journal.close()
    return result, events


def test_sites_train_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = FakeContext([Site(f"site-{i}", honest) for i in range(5)])
    result, _ = federate(monkeypatch, context, tmp_path, stop_after_updates=200, server_lr=0.5, min_clients=5)
    np.testing.assert_allclose(result.arrays["w"], 2.0, atol=0.05)
    assert {client for client, _ in result.verdicts} == {f"site-{i}" for i in range(5)}


def test_what_a_site_says_of_its_privacy_is_on_record_before_its_update(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def private(dispatch: Message) -> Message:
        said = {"secureafl-epsilon": 0.5 * (dispatch["version"] + 1), "secureafl-delta": 1e-5}
        return {**honest(dispatch), "metrics": said}

    def absurd(dispatch: Message) -> Message:
        return {**honest(dispatch), "metrics": "much"}

    context = FakeContext(
        [
            Site("private", private),
            Site("absurd", absurd),
            Site(
                "refused",
                lambda dispatch: {"arrays": b"", "metrics": {"secureafl-epsilon": 1.0, "secureafl-delta": 1e-5}},
            ),
        ]
    )
    federate(monkeypatch, context, tmp_path, stop_after_updates=10)
    journal = read_journal(tmp_path / "run.db")
    rows = [
        row for row in journal.entries() if row.event in (Event.REPORTED, Event.ARRIVAL) and row.client == "private"
    ]
    others = {row.client for row in journal.entries(Event.REPORTED)} - {"private"}
    journal.close()
    assert others == set()
    assert [row.event for row in rows[:4]] == [Event.REPORTED, Event.ARRIVAL] * 2
    assert rows[0].evidence == {"epsilon": 0.5, "delta": 1e-5}
    assert rows[2].evidence["epsilon"] > 0.5


def test_a_training_function_may_return_metrics_beside_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(clients=[SimpleNamespace(name="site-1")], app=SimpleNamespace(name="site-1"))
    monkeypatch.setattr(nvflare_client, "current_context", lambda: place)
    monkeypatch.setattr(nvflare_client, "load_function", lambda name: lambda arrays, config: (arrays, {"loss": 0.5}))
    dispatch = {"arrays": pack(MODEL), "config": {}, "version": 0, "nonce": b"n" * 16}
    sent = AsyncClient(train="task:train").reply(dispatch)
    assert sent["metrics"] == {"loss": 0.5}
    np.testing.assert_array_equal(load(sent["arrays"])["w"], MODEL["w"])


def test_a_site_that_raises_is_on_record_and_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = FakeContext([Site("good", honest), Site("bad", raising)])
    result, events = federate(monkeypatch, context, tmp_path, stop_after_seconds=2.0)
    assert "client-error: cannot train" in events["bad"]
    assert {client for client, _ in result.verdicts} == {"good"}


def test_a_site_that_is_gone_leaves_and_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    away, good = Site("away", honest), Site("good", honest)
    away.gone = True
    threading.Timer(0.5, lambda: setattr(away, "gone", False)).start()
    result, events = federate(monkeypatch, FakeContext([away, good]), tmp_path, stop_after_seconds=1.5)
    assert {"joined", "left: timed out", "returned", "arrival"} <= events["away"]
    assert {client for client, _ in result.verdicts} == {"away", "good"}


def test_an_aborted_job_ends_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = FakeContext([Site("good", honest)])
    threading.Timer(0.3, context.aborted.set).start()
    started = time.monotonic()
    federate(monkeypatch, context, tmp_path)
    assert time.monotonic() - started < 10.0
    assert (tmp_path / "model.safetensors").exists()


def test_the_end_of_the_run_ends_calls_that_are_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = Site("slow", honest)
    of_the_job, seen = slow.backend.abort_signal, []

    def wait(dispatch: Message) -> Message:
        signal = slow.backend.abort_signal
        while not signal.triggered:
            time.sleep(0.01)
        seen.append(signal)
        raise ValueError("aborted")

    slow._reply = wait
    federate(monkeypatch, FakeContext([slow, Site("good", honest)]), tmp_path, stop_after_updates=10)
    assert len(seen) == 1
    assert seen[0] is not of_the_job
    assert slow.backend.abort_signal is of_the_job, "other calls of the server's work as before"


def pulling(arrays: NamedArrays, config: Mapping[str, Any]) -> NamedArrays:
    """Trains in place, as a client may."""
    assert arrays["w"].dtype == np.float32
    arrays["w"] += 0.5 * (2.0 - arrays["w"])
    return arrays


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_sites_that_can_compress_do_and_the_others_are_served_as_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wire: Wire
) -> None:
    client, types = AsyncClient(f"{__name__}:pulling"), []
    Feedback(wire).compress(np.ones(2, np.float32))  # compiled before the others begin, who would be done otherwise
    monkeypatch.setattr(nvflare_client, "_place", dict)
    monkeypatch.setattr(nvflare_client, "load_function", lambda name: pulling)

    def able(dispatch: Message) -> Message:
        types.append(str(load(dispatch["arrays"])["w"].dtype))
        return client.reply(dispatch)

    context = FakeContext([Site("able", able), Site("unable", honest)])
    settings = {"stop_after_updates": 80, "wire": wire, "server_lr": 0.2, "defense": "asyncsgd"}
    result, _ = federate(monkeypatch, context, tmp_path, **settings)
    np.testing.assert_allclose(result.arrays["w"], 2.0, atol=0.05)
    assert types[0] == "float32"
    assert set(types[1:]) == {"uint16"}
    journal = read_journal(tmp_path / "run.db")
    rows = list(journal.entries(Event.ARRIVAL, payloads=True))
    journal.close()
    assert {(row.client, is_compressed(row.payload or b"")) for row in rows} == {("able", True), ("unable", False)}
