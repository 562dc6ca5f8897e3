"""The Flower adapter at the Grid seam: everything but Flower's own processes."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from rich.console import Console
from safetensors.numpy import load_file
from tests.engines.flower.fake_grid import FakeGrid, Node, error, reply, trainer, weights_of
from tests.golden.recorded import BEGUN, PROBLEM, RUNS

from secureafl.engines.flower import FlowerSettings, run_federation
from secureafl.errors import StoreError
from secureafl.server import Federation, Result
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.resumption import ask_to_resume
from secureafl.server.record.sqlite import read_journal
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.verify import verify

MODEL = {"w": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.float64)}
QUICK: dict[str, Any] = {"discovery_seconds": 0.02, "poll_seconds": 0.001, "retry_seconds": 0.02, "num_workers": 4}


def federate(grid: FakeGrid, run_dir: Path, **settings: Any) -> tuple[Result, list[Entry]]:
    made = FlowerSettings(**{**QUICK, "stop_after_seconds": 20.0, "run_dir": run_dir, **settings})
    result = run_federation(grid, MODEL, made, console=Console(quiet=True))  # type: ignore[arg-type]
    journal = read_journal(run_dir / "run.db")
    rows = list(journal.entries())
    journal.close()
    return result, rows


def events(rows: list[Entry], node_id: int) -> list[Event]:
    return [row.event for row in rows if row.client == str(node_id) and row.event is not Event.ISSUED]


def after(num_pulls: int, node: Node) -> Node:
    """A node that is not ready at first."""
    counts: dict[bytes, int] = {}

    def slow(message: Message) -> Message | None:
        nonce = message.content.config_records["config"]["secureafl-nonce"]
        assert isinstance(nonce, bytes)
        counts[nonce] = counts.get(nonce, 0) + 1
        return node(message) if counts[nonce] > num_pulls else None

    return slow


def test_clients_that_return_weights_train_the_model(tmp_path: Path) -> None:
    grid = FakeGrid({node: after(node % 3, trainer(2.0)) for node in range(10, 15)})
    result, rows = federate(grid, tmp_path, stop_after_updates=150, server_lr=0.2)
    np.testing.assert_allclose(result.arrays["w"], 2.0, atol=0.05)
    np.testing.assert_allclose(result.arrays["b"], 2.0, atol=0.05)
    assert result.arrays["b"].dtype == np.float64
    assert result.version == 150
    assert [row.version for row in rows if row.event is Event.ARRIVAL] == list(range(150))
    np.testing.assert_array_equal(load_file(tmp_path / "model.safetensors")["w"], result.arrays["w"])


OWN_RULE = """
from secureafl import Verdict
from secureafl.types import refuse


class Deaf:
    def __init__(self, dim):
        pass

    def step(self, update, model):
        return refuse("not-today")

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
"""


def test_a_rule_from_the_apps_own_folder_judges_and_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rules.py").write_text(OWN_RULE)
    monkeypatch.syspath_prepend(tmp_path)  # as Flower does with an app's folder
    run_dir = tmp_path / "run"
    grid = FakeGrid({1: trainer(1.0), 2: trainer(1.0)})
    result, rows = federate(grid, run_dir, stop_after_updates=10, defense="my_rules:Deaf")
    assert {row.reason for row in rows if row.event is Event.ARRIVAL} == {"not-today"}
    np.testing.assert_array_equal(result.arrays["w"], 0.0)
    recorded = RecordedRun.open(run_dir)
    assert recorded.facts["defense"] == "my_rules:Deaf"
    assert type(recorded.machine().defense).__name__ == "Deaf"
    recorded.journal.close()


def test_dispatches_look_like_flowers_own_and_never_repeat_a_nonce(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: trainer(1.0)})
    federate(grid, tmp_path, stop_after_updates=20)
    nonces = set()
    for message in grid.pushed:
        assert list(message.content.array_records) == ["arrays"]
        config = message.content.config_records["config"]
        assert isinstance(config["server-round"], int)
        nonce = config["secureafl-nonce"]
        assert isinstance(nonce, bytes)
        assert len(nonce) == 16
        nonces.add(nonce)
    assert len(nonces) == len(grid.pushed)


def test_a_stalled_update_blocks_only_its_node(tmp_path: Path) -> None:
    release = threading.Event()

    def stalled(message: Message) -> Message:
        release.wait(30)
        return trainer(1.0)(message)

    grid = FakeGrid({1: stalled, 2: trainer(1.0), 3: trainer(1.0)})
    result, _ = federate(grid, tmp_path, stop_after_updates=200, num_workers=2)
    release.set()
    assert result.version == 200
    assert result.seconds < 10


def test_one_worker_pool_serves_a_thousand_nodes_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = Federation.note

    def note_slowly(federation: Federation, client: str, event: Event, reason: str = "") -> None:
        time.sleep(0.001)  # a busy machine: nodes answer faster than others are written down
        note(federation, client, event, reason)

    monkeypatch.setattr(Federation, "note", note_slowly)
    grid = FakeGrid({node: trainer(1.0) for node in range(1, 1001)})
    result, rows = federate(
        grid,
        tmp_path,
        stop_after_updates=1500,
        stop_after_seconds=300.0,
        defense="asyncsgd",
        server_lr=0.01,
        max_in_flight=50,
    )
    assert result.version == 1500
    assert grid.most_open <= 50
    assert len({row.client for row in rows if row.event is Event.ARRIVAL}) >= 999  # everyone had a turn


def test_late_joiners_are_picked_up(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0)})
    threading.Timer(0.2, lambda: grid.nodes.update({7: trainer(1.0)})).start()
    _, rows = federate(grid, tmp_path, stop_after_seconds=1.0)
    assert Event.ARRIVAL in events(rows, 7)


def test_nothing_is_sent_before_enough_nodes_are_there(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0)})
    result, _ = federate(grid, tmp_path, stop_after_seconds=0.3, min_nodes=2)
    assert grid.pushed == []
    assert result.version == 0


def test_a_vanished_node_is_forgotten_and_taken_back(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: after(3, trainer(1.0))})

    def leave_and_return() -> None:
        node = grid.nodes.pop(2)
        time.sleep(1.0)
        grid.nodes[2] = node

    threading.Timer(0.5, leave_and_return).start()
    _, rows = federate(grid, tmp_path, stop_after_seconds=3.5)
    seen = events(rows, 2)
    left = seen.index(Event.LEFT)
    assert Event.RETURNED in seen[left:]
    assert Event.ARRIVAL in seen[left:]


def test_a_refused_push_forgets_the_node(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: trainer(1.0)})
    grid.refused = {2}
    _, rows = federate(grid, tmp_path, stop_after_updates=10)
    assert events(rows, 2)[:2] == [Event.JOINED, Event.LEFT]


def test_error_replies_become_journal_entries_and_are_retried_with_back_off(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: error(message, 2, "ClientApp raised")})
    _, rows = federate(grid, tmp_path, stop_after_seconds=0.8)
    errors = [row for row in rows if row.client == "2" and row.event is Event.CLIENT_ERROR]
    assert 2 <= len(errors) <= 7  # after 0.02 s, doubled each time
    assert errors[0].reason == "code 2: ClientApp raised"


def test_failures_in_a_row_set_a_node_aside(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: error(message, 8, "crashed")})
    _, rows = federate(grid, tmp_path, stop_after_seconds=0.5, max_failures=2, max_retry_seconds=0.01)
    seen = events(rows, 2)
    assert seen[:4] == [Event.JOINED, Event.CLIENT_ERROR, Event.CLIENT_ERROR, Event.LEFT]


def test_a_ticket_that_is_not_answered_in_time_expires(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: None})
    _, rows = federate(grid, tmp_path, stop_after_seconds=0.6, ttl_seconds=0.1)
    assert Event.EXPIRED in events(rows, 2)


def test_an_engine_expiry_is_an_expiry_too(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: error(message, 3, "message unavailable")})
    _, rows = federate(grid, tmp_path, stop_after_seconds=0.3)
    assert Event.EXPIRED in events(rows, 2)


def test_a_grid_that_fails_now_and_then_does_not_end_the_run(tmp_path: Path) -> None:
    calls = [0]

    def flaky(message: Message) -> Message:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise ConnectionError("SuperLink restarting")
        return trainer(1.0)(message)

    result, rows = federate(FakeGrid({1: flaky, 2: flaky}), tmp_path, stop_after_updates=20, max_retry_seconds=0.05)
    assert result.version == 20
    assert any("SuperLink restarting" in row.reason for row in rows if row.event is Event.ENGINE_TROUBLE)


def _records(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def _broken_bytes(message: Message) -> RecordDict:
    record = _records(weights_of(message))
    record["w"] = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"\x93NUMPY garbage")
    return RecordDict({"arrays": record})


GARBAGE: dict[str, tuple[Callable[[Message], RecordDict], str]] = {
    "nothing": (lambda _: RecordDict(), "malformed"),
    "no arrays": (lambda _: RecordDict({"metrics": MetricRecord({"x": 1})}), "malformed"),
    "two records": (lambda m: RecordDict({"a": _records(weights_of(m)), "b": _records(weights_of(m))}), "malformed"),
    "broken bytes": (_broken_bytes, "malformed"),
    "pickled": (
        lambda _: RecordDict({"a": ArrayRecord({"w": Array("object", (1,), "numpy.ndarray", b"\x80\x04.")})}),
        "malformed",
    ),
    "names": (lambda m: RecordDict({"arrays": _records({"w": np.zeros(3)})}), "wrong-names"),
    "shape": (lambda m: RecordDict({"arrays": _records({"w": np.zeros(4), "b": np.zeros((2, 2))})}), "wrong-shape"),
    "dtype": (
        lambda m: RecordDict({"arrays": _records({"w": np.zeros(3, bool), "b": np.zeros((2, 2))})}),
        "wrong-dtype",
    ),
    "nan": (lambda m: RecordDict({"arrays": _records({"w": np.full(3, np.nan), "b": np.zeros((2, 2))})}), "not-finite"),
    "huge": (lambda m: RecordDict({"arrays": _records({"w": np.full(3, 1e30), "b": np.zeros((2, 2))})}), "too-large"),
    "oversize": (
        lambda m: RecordDict({"arrays": _records({"w": np.zeros(100_000), "b": np.zeros((2, 2))})}),
        "too-large",
    ),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused_by_name_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    make, reason = GARBAGE[kind]
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: reply(message, make(message))})
    result, rows = federate(grid, tmp_path, stop_after_updates=30, defense="asyncsgd", server_lr=0.5)
    refused = [row for row in rows if row.client == "2" and row.event is Event.REFUSED]
    assert len(refused) == 5, "then it gets no more work"
    assert {row.reason for row in refused} == {reason}
    assert np.isfinite(result.arrays["w"]).all()
    assert result.version == 30


def test_a_node_that_sends_only_garbage_is_quarantined(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0), 2: lambda message: reply(message, RecordDict())})
    result, rows = federate(grid, tmp_path, stop_after_updates=60, max_refusals=4, max_in_flight=2)
    assert [row.event for row in rows if row.client == "2" and row.event is not Event.ISSUED] == [
        Event.JOINED,
        *[Event.REFUSED] * 4,
        Event.QUARANTINED,
    ]
    assert result.version == 60, "its place went to the others"


def test_a_claimed_number_of_examples_weighs_nothing(tmp_path: Path) -> None:
    def boaster(message: Message) -> Message:
        made = trainer(100.0)(message)
        made.content["metrics"] = MetricRecord({"num-examples": 10**12})
        return made

    grid = FakeGrid({1: trainer(1.0), 2: trainer(1.0), 3: trainer(1.0), 4: boaster})
    result, _ = federate(grid, tmp_path, stop_after_updates=80, server_lr=0.5)
    assert np.abs(np.asarray(result.arrays["w"], np.float32) - 1.0).max() < 1.0


def test_answers_can_be_held_so_that_nodes_differ_in_speed(tmp_path: Path) -> None:
    grid = FakeGrid({node: trainer(1.0) for node in range(1, 9)})
    _, rows = federate(grid, tmp_path, stop_after_seconds=1.5, hold_seconds=0.05)
    arrivals = [row.client for row in rows if row.event is Event.ARRIVAL]
    counts = [arrivals.count(str(node)) for node in range(1, 9)]
    assert min(counts) >= 1
    assert max(counts) > 2 * min(counts)


def test_evaluation_runs_beside_training_and_can_end_the_run(tmp_path: Path) -> None:
    def evaluate(arrays: dict[str, Any]) -> dict[str, float]:
        time.sleep(0.01)
        return {"closeness": 1.0 - float(np.abs(arrays["w"] - 1.0).max())}

    grid = FakeGrid({node: trainer(1.0) for node in (1, 2, 3)})
    settings = FlowerSettings(
        **QUICK, stop_after_seconds=20.0, stop_at_metric="closeness", stop_at_value=0.9, evaluate_every=5, server_lr=0.2
    )
    result = run_federation(grid, MODEL, settings, evaluate=evaluate, console=Console(quiet=True))  # type: ignore[arg-type]
    assert result.seconds < 15
    assert result.evaluations[-1].metrics["closeness"] >= 0.9
    assert result.evaluations[0].version == 0


def test_a_config_for_clients_travels_with_every_dispatch(tmp_path: Path) -> None:
    grid = FakeGrid({1: trainer(1.0)})
    settings = FlowerSettings(**QUICK, stop_after_updates=3)
    run_federation(grid, MODEL, settings, train_config={"lr": 0.1}, console=Console(quiet=True))  # type: ignore[arg-type]
    assert all(message.content.config_records["config"]["lr"] == 0.1 for message in grid.pushed)


def test_signed_answers_are_asked_for(tmp_path: Path) -> None:
    """Without the victim's key, no answer in its name is believed, not even with its own nonce and version."""
    from secureafl.engines.flower.contents import record_digest
    from secureafl.engines.signing import read_private_key, sign, write_key_pair

    public = {node: write_key_pair(tmp_path / f"{node}.pem") for node in (1, 2)}
    keys_file = tmp_path / "keys.toml"
    keys_file.write_text("".join(f'{node} = "{text}"\n' for node, text in public.items()))

    def signing_node(key_of: int, target: float) -> Callable[[Message], Message]:
        key = read_private_key(tmp_path / f"{key_of}.pem")

        def node(message: Message) -> Message:
            made = trainer(target)(message)
            config = message.content.config_records["config"]
            nonce, version = config["secureafl-nonce"], config["server-round"]
            assert isinstance(nonce, bytes)
            assert isinstance(version, int)
            signature = sign(key, nonce, version, record_digest(made.content.array_records["arrays"]))
            made.content["proof"] = ConfigRecord({"secureafl-signature": signature})
            return made

        return node

    def replaying_node() -> Node:
        kept: list[Message] = []

        def node(message: Message) -> Message:
            kept.append(signing_node(2, 1.0)(message))
            return kept[0]  # a good signature, but for the first assignment

        return node

    nodes: dict[int, Node] = {1: signing_node(1, 1.0), 2: replaying_node(), 3: signing_node(1, 9.0), 4: trainer(9.0)}
    _, rows = federate(FakeGrid(nodes), tmp_path / "run", stop_after_updates=60, keys_file=keys_file)
    outcome = {
        client: {row.reason for row in rows if row.event in {Event.ARRIVAL, Event.REFUSED} and row.client == client}
        for client in "1234"
    }
    assert "bad-signature" not in outcome["1"]
    assert outcome["2"] == {"first-contact", "bad-signature"}
    assert outcome["3"] == {"bad-signature"}  # signed, with a key that is not node 3's
    assert outcome["4"] == {"bad-signature"}  # unsigned


def test_a_run_of_0_1_is_resumed_when_its_operator_says_so(tmp_path: Path) -> None:
    recorded = RUNS[0]
    run_dir = Path(shutil.copytree(recorded.folder, tmp_path / "run"))
    app: dict[str, Any] = recorded.settings(run_dir).model_dump(
        include={"client_returns", "server_lr", "max_staleness"}
    )
    ask_to_resume(run_dir)
    grid = FakeGrid({node: trainer(1.0) for node in range(1, 4)})
    made = FlowerSettings(**QUICK, **app, run_dir=run_dir, stop_after_updates=BEGUN + 20)
    model = {"w": np.zeros(PROBLEM.dim, np.float32)}
    with pytest.raises(StoreError, match=r"defense_settings\.aggregate = 'median', not 'running_mean'"):
        run_federation(grid, model, made, console=Console(quiet=True))  # type: ignore[arg-type]
    as_0_1 = made.model_copy(update={"defense_settings": {"aggregate": "median"}})
    result = run_federation(grid, model, as_0_1, console=Console(quiet=True))  # type: ignore[arg-type]
    assert result.version == BEGUN + 20
    assert verify(run_dir).head is not None
