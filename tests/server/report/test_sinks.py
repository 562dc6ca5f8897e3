"""Feeds with a fake sink, and each real sink read back with its own library."""

import importlib
import json
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from secureafl.errors import SettingsError
from secureafl.server.live.evaluation import Evaluation
from secureafl.server.live.telemetry import Standing, Telemetry
from secureafl.server.record.entries import Entry, Event
from secureafl.server.report import sinks
from secureafl.server.report.sinks import Facts, Feed, Kind, check_sinks, parse_sink, split_sinks

Written = list[tuple[int, dict[str, float]]]


class FakeSink:
    """Keeps what it is given, unless it is told to fail."""

    def __init__(self) -> None:
        self.written: Written = []
        self.failing = False
        self.closed = False

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        if self.failing:
            raise ConnectionError("no route to host")
        self.written.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def arrival(version: int, *, accepted: bool = True, base: int | None = None) -> Entry:
    reason = "accepted" if accepted else "changed-too-abruptly"
    evidence = {"lipschitz_factor": math.inf if accepted else 3.0, "threshold": 2.0}
    base = version if base is None else base
    return Entry(float(version), version, "a", Event.ARRIVAL, reason, accepted, evidence, version, base)


def a_short_run(telemetry: Telemetry) -> None:
    """Four arrivals, one of them rejected and two versions old, between two evaluations."""
    telemetry.evaluated(Evaluation(0, 0.0, {"accuracy": 0.1}))
    for version in range(4):
        telemetry.row(arrival(version, accepted=version < 3, base=version - 2 if version == 3 else None))
        telemetry.took("step", 0.5)
    telemetry.row(Entry(4.0, 4, "b", Event.EXPIRED, "too slow"))
    telemetry.stand(Standing(known=2, excluded=1))
    telemetry.evaluated(Evaluation(4, 4.0, {"accuracy": 0.9}))


EXPECTED: dict[str, list[tuple[int, float]]] = {
    "evaluation/accuracy": [(0, 0.1), (4, 0.9)],
    "server/accepted": [(4, 0.75)],
    "server/rejected": [(4, 0.25)],
    "server/refused": [(4, 0.0)],
    "server/staleness": [(4, 0.5)],
    "server/step_seconds": [(4, 0.5)],
    "server/clients_known": [(4, 2.0)],
    "server/clients_excluded": [(4, 1.0)],
    "server/clients_quarantined": [(4, 0.0)],
    "server/lipschitz_factor": [(4, 3.0)],
    "server/lipschitz_threshold": [(4, 2.0)],
    "events/expired": [(4, 1.0)],
}


def send_a_short_run(sink: str) -> None:
    telemetry, said = Telemetry(lambda: 0.0), list[str]()
    feed = Feed(sink, telemetry, name="today", facts={"defense": "secureafl"}, say=said.append)
    a_short_run(telemetry)
    feed.write()
    feed.close()
    assert said == []


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSink:
    sink = FakeSink()

    def make(target: str, name: str, facts: Facts) -> FakeSink:
        return sink

    monkeypatch.setattr(sinks, "SINKS", {"fake": Kind(make, "json", "DIR")})
    return sink


def by_name(written: Written) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for step, values in written:
        for name, value in values.items():
            found.setdefault(name, []).append((step, value))
    return found


def test_a_feed_sends_evaluations_and_what_the_server_did_since(fake: FakeSink) -> None:
    send_a_short_run("fake:there")
    assert by_name(fake.written) == EXPECTED
    assert fake.closed


def test_nothing_new_sends_nothing(fake: FakeSink) -> None:
    telemetry = Telemetry(lambda: 0.0)
    feed = Feed("fake:there", telemetry, name="today", facts={}, say=pytest.fail)
    feed.write()
    telemetry.row(arrival(0))
    feed.write()
    feed.write()
    feed.close()
    assert [step for step, _ in fake.written] == [1]


def test_a_sink_that_fails_costs_one_line_and_gets_the_evaluations_it_missed(fake: FakeSink) -> None:
    telemetry, said, clock = Telemetry(lambda: 0.0), list[str](), Clock()
    feed = Feed("fake:there", telemetry, name="today", facts={}, say=said.append, clock=clock)
    fake.failing = True
    for version in range(3):
        telemetry.evaluated(Evaluation(version, 0.0, {"accuracy": 0.5}))
        feed.write()
        clock.now += sinks.RETRY_SECONDS
    assert said == ["sink fake:there failed, and the run goes on: ConnectionError: no route to host"]
    fake.failing = False
    feed.write()
    assert [step for step, _ in fake.written] == [0, 1, 2]
    fake.failing = True
    telemetry.evaluated(Evaluation(3, 0.0, {"accuracy": 0.5}))
    feed.write()
    assert len(said) == 2, "another outage, another line"
    feed.close()


def test_a_sink_that_hangs_holds_up_nobody(fake: FakeSink, monkeypatch: pytest.MonkeyPatch) -> None:
    release, said, telemetry = threading.Event(), list[str](), Telemetry(lambda: 0.0)
    entered = threading.Event()

    def hang(step: int, values: Mapping[str, float]) -> None:
        entered.set()
        release.wait(30)

    monkeypatch.setattr(fake, "scalars", hang)
    monkeypatch.setattr(sinks, "CLOSE_SECONDS", 0.1)
    telemetry.evaluated(Evaluation(0, 0.0, {"accuracy": 0.5}))
    feed = Feed("fake:there", telemetry, name="today", facts={}, say=said.append)
    feed.start(0.01)
    assert entered.wait(5)
    feed.close()
    release.set()
    assert len(said) == 1
    assert "did not finish" in said[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord:here", "did you mean 'tensorboard'?"),
        ("mlflow", "write mlflow:URI"),
        ("wandb:", "write wandb:DIR"),
    ],
)
def test_a_mistake_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_sink(text)
    assert message in str(raised.value)


def test_a_missing_library_is_named_before_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(SettingsError, match=r'pip install "secureafl\[wandb\]"'):
        check_sinks(["wandb:here"])


def test_one_text_can_name_several() -> None:
    assert split_sinks("tensorboard:a, mlflow:sqlite:///b.db") == ["tensorboard:a", "mlflow:sqlite:///b.db"]
    assert split_sinks("") == []
    assert parse_sink("mlflow:sqlite:///b.db")[1] == "sqlite:///b.db"


APPROXIMATELY: dict[str, Any] = {
    name: [(step, pytest.approx(value, rel=1e-6)) for step, value in points] for name, points in EXPECTED.items()
}
"""TensorBoard keeps float32."""


def test_tensorboard_reads_what_was_sent(tmp_path: Path) -> None:
    send_a_short_run(f"tensorboard:{tmp_path}")
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    reader = events.EventAccumulator(str(tmp_path / "today"))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    assert {tag: [(point.step, point.value) for point in reader.Scalars(tag)] for tag in tags} == APPROXIMATELY


@pytest.mark.slow  # its import alone takes seconds
@pytest.mark.filterwarnings("default")  # its own, at import
def test_mlflow_reads_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    send_a_short_run(f"mlflow:{uri}")
    client = importlib.import_module("mlflow.tracking").MlflowClient(uri)
    [run] = client.search_runs([client.get_experiment_by_name("secureafl").experiment_id])
    assert (run.info.run_name, run.info.status) == ("today", "FINISHED")
    assert run.data.params == {"defense": "secureafl"}
    names = run.data.metrics
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
    assert {name: [(m.step, m.value) for m in history] for name, history in histories.items()} == APPROXIMATELY


@pytest.mark.end_to_end  # it starts a process of its own
@pytest.mark.filterwarnings("default")  # its own, at import
def test_weights_and_biases_reads_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)  # offline is our default
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "")  # so that what the sink sets is taken back after the test
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    with socket.create_server(("127.0.0.1", 0)) as home:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{home.getsockname()[1]}")
        send_a_short_run(f"wandb:{tmp_path}")
        home.settimeout(0.5)
        with pytest.raises(TimeoutError):
            home.accept()  # nobody called
    [log] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written: Written = []
    for record in wandb_records(log):
        if record.WhichOneof("record_type") == "run":
            assert record.run.display_name == "today"
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            own = {key: value for key, value in items.items() if not key.startswith("_")}
            written.append((own.pop("version"), own))
    assert by_name(written) == APPROXIMATELY


def wandb_records(log: Path) -> Iterator[Any]:
    """The records of a W&B run file: a LevelDB log of its own protocol buffers, behind seven bytes of header."""
    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    data, place, block, whole = log.read_bytes(), 7, 32768, b""
    assert data.startswith(b":W&B")
    while place < len(data):
        if block - place % block < 7:  # too little for another header: the rest of the block is padding
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part of one
            yield record.FromString(whole)
            whole = b""
