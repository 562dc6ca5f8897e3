"""The first failure ends the run: nothing is handed out that is not on record, and nobody waits for ever."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from secureafl import Layout, Machine, Vector
from secureafl.defenses import AsyncSGD
from secureafl.errors import EvaluationError, FederationError, StoreError
from secureafl.server import Federation, FederationSettings
from secureafl.server.live.evaluation import Evaluate
from secureafl.server.record.entries import Event
from secureafl.server.record.folder import FolderStore
from secureafl.server.record.run import model_hash
from secureafl.server.record.sqlite import Connection, connect_sqlite, read_journal

LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})
STEP = np.ones(2, np.float32)


class FullDisk:
    """A database whose disk is full from the n-th commit on."""

    def __init__(self, database: Connection, room: int) -> None:
        self._database = database
        self._room = room

    @property
    def in_transaction(self) -> bool:
        return self._database.in_transaction

    def execute(self, statement: str, parameters: Any = (), /) -> Any:
        if statement == "COMMIT":
            self._room -= 1
            if self._room < 0:
                raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(statement, parameters)

    def close(self) -> None:
        self._database.close()


def federation(
    run_dir: Path | None = None,
    *,
    connect: Callable[[str], Connection] = connect_sqlite,
    evaluate: Evaluate | None = None,
    **settings: object,
) -> Federation:
    made = FederationSettings(defense="asyncsgd", run_dir=run_dir, **settings)  # type: ignore[arg-type]
    machine = Machine(AsyncSGD(2), np.zeros(2, np.float32), made.machine())
    store = None if run_dir is None else FolderStore(run_dir, connect=connect)
    return Federation(machine, LAYOUT, made, store=store, evaluate=evaluate)


def test_a_failed_write_ends_the_run_before_anyone_gets_what_is_not_on_record(tmp_path: Path) -> None:
    run = federation(tmp_path, connect=lambda address: FullDisk(connect_sqlite(address), room=4))
    handed_out: list[Vector] = []
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            run.run()
        except BaseException as error:
            failures.append(error)

    consumer = threading.Thread(target=serve)
    consumer.start()
    while (assignment := run.assign("a")) is not None:
        handed_out.append(assignment.params)
        if run.deliver(assignment, STEP).exception(timeout=10) is not None:
            break
    consumer.join(10)
    assert run.assign("b") is None
    [failure] = failures
    assert isinstance(failure, StoreError)
    assert "database or disk is full" in str(failure)
    with pytest.raises(StoreError, match="disk is full"):
        run.note("a", Event.JOINED)
    run.close()

    journal = read_journal(tmp_path / "run.db")
    on_record = {model_hash(np.zeros(2, np.float32)), *(row.model for row in journal.entries(Event.ARRIVAL))}
    journal.close()
    assert {model_hash(params) for params in handed_out} <= on_record
    again = federation(tmp_path, resume=True)
    assert again._machine.model.version == len(handed_out) - 1
    again.close()


def test_whoever_waits_for_a_verdict_is_told_that_the_run_is_over() -> None:
    run = federation(stop_after_updates=1)
    first, second = run.assign("a"), run.assign("b")
    assert first is not None
    assert second is not None
    judged, waiting = run.deliver(first, STEP), run.deliver(second, STEP)
    run.run()
    assert judged.result().accepted
    assert waiting.cancelled()
    run.close()


def test_a_part_of_the_server_that_fails_ends_the_run_with_its_reason_on_record(tmp_path: Path) -> None:
    run = federation(tmp_path)
    run.fail(RuntimeError("a worker died"))
    with pytest.raises(FederationError, match=r"RuntimeError: a worker died.*resume it"):
        run.run()
    assert [row.reason for row in run.journal.entries(Event.FAILED)] == ["RuntimeError: a worker died"]
    assert list(run.journal.entries(Event.FINISHED)) == []
    run.close()


def test_a_failing_evaluation_costs_neither_the_model_nor_the_end_of_the_record(tmp_path: Path) -> None:
    def evaluate(_: object) -> dict[str, float]:
        raise ValueError("no test data")

    run = federation(tmp_path, evaluate=evaluate, stop_after_updates=1)
    assignment = run.assign("a")
    assert assignment is not None
    run.deliver(assignment, STEP)
    with pytest.raises(EvaluationError, match=r"ValueError: no test data\. The run is finished and its model is saved"):
        run.run()
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [-1, -1]
    assert [row.event for row in run.journal.entries()][-1] is Event.FINISHED
    assert {row.reason for row in run.journal.entries(Event.EVALUATION_FAILED)} == {"ValueError: no test data"}
    run.close()


def test_the_stop_test_looks_at_one_number(tmp_path: Path) -> None:
    values = iter([0.2, 0.9, 0.1, 0.1])
    run = federation(
        evaluate=lambda _: {"accuracy": next(values)},
        evaluate_every=1,
        stop_at_metric="accuracy",
        stop_at_value=0.9,
        stop_after_seconds=20.0,
    )
    run.begin()
    while not run.is_over():
        assignment = run.assign("a")
        assert assignment is not None
        run.deliver(assignment, STEP)
        run.step(0.1)
    assert run.seconds < 20.0
    run.stop()
    run.conclude()
    run.close()
