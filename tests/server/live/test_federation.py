import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secureafl import Layout, Machine, Reason, Vector
from secureafl.defenses import AsyncSGD
from secureafl.errors import SettingsError
from secureafl.server import Federation, FederationSettings, Result, Status
from secureafl.server.record.entries import Event

LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})


def federation(*, report: Callable[[Status], None] | None = None, **settings: object) -> Federation:
    made = FederationSettings(defense="asyncsgd", **settings)  # type: ignore[arg-type]
    return Federation(Machine(AsyncSGD(2), np.zeros(2, np.float32), made.machine()), LAYOUT, made, report=report)


def in_background(run: Federation) -> tuple[threading.Thread, list[Result]]:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run.run()))
    thread.start()
    return thread, results


def step(value: float) -> Vector:
    return np.full(2, value, np.float32)


def test_a_client_gets_the_new_model_once_its_answer_was_judged() -> None:
    run = federation(stop_after_updates=2)
    thread, results = in_background(run)
    first = run.assign("a")
    assert first is not None
    verdict = run.deliver(first, step(1.0)).result(timeout=5)
    assert verdict.accepted
    second = run.assign("a")
    assert second is not None
    assert second.version == 1
    assert second.params.tolist() == [-1, -1]
    run.deliver(second, step(1.0))
    thread.join(5)
    assert results[0].arrays["w"].tolist() == [-2, -2]
    assert results[0].verdicts == {("a", "accepted"): 2}
    run.close()


def test_arrivals_are_taken_in_order_whatever_thread_they_come_from() -> None:
    run = federation(stop_after_updates=200)
    assignments = [run.assign(f"client-{k % 7}") for k in range(200)]
    for assignment in assignments:
        assert assignment is not None
        run.deliver(assignment, step(0.0))
    run.run()
    rows = list(run.journal.entries(Event.ARRIVAL))
    assert [row.client for row in rows] == [f"client-{k % 7}" for k in range(200)]
    assert [row.version for row in rows] == list(range(200))
    run.close()


def test_an_answer_that_is_no_update_is_a_row_and_no_arrival() -> None:
    run = federation(stop_after_updates=1)
    garbage, good = run.assign("a"), run.assign("b")
    assert garbage is not None
    assert good is not None
    refused, judged = run.deliver(garbage, Reason.MALFORMED), run.deliver(good, step(1.0))
    result = run.run()
    assert refused.result().reason == Reason.MALFORMED
    assert judged.result().accepted
    assert result.version == 1
    assert [(row.client, row.reason, row.version) for row in run.journal.entries(Event.REFUSED)] == [
        ("a", "malformed", 0)
    ]
    assert [row.client for row in run.journal.entries(Event.ARRIVAL)] == ["b"]
    run.close()


def test_garbage_makes_no_honest_answer_too_stale() -> None:
    run = federation(stop_after_updates=1, max_staleness=2, max_refusals=None)
    slow = run.assign("honest")
    assert slow is not None
    for _ in range(50):
        fast = run.assign("flooding")
        assert fast is not None
        run.deliver(fast, Reason.WRONG_SHAPE)
    done = run.deliver(slow, step(1.0))
    assert run.run().version == 1
    assert done.result().accepted
    run.close()


def test_an_answer_after_giving_up_is_refused_and_moves_nothing() -> None:
    run = federation(stop_after_seconds=0.3)
    assignment = run.assign("a")
    assert assignment is not None
    run.give_up(assignment, Event.EXPIRED, "too slow")
    done = run.deliver(assignment, step(9.0))
    result = run.run()
    assert done.result().reason == Reason.TICKET_CLOSED
    assert result.version == 0
    assert [row.reason for row in run.journal.entries(Event.EXPIRED)] == ["too slow"]
    run.close()


def test_a_client_that_sends_much_garbage_is_quarantined_also_after_a_restart(tmp_path: Path) -> None:
    run = federation(stop_after_updates=3, max_refusals=3, run_dir=tmp_path)
    thread, _ = in_background(run)
    answers: list[Vector | Reason] = [
        Reason.MALFORMED,
        step(1.0),
        Reason.TOO_STALE,
        Reason.WRONG_SHAPE,
        step(1.0),
        Reason.MALFORMED,
    ]
    for answer in answers:  # a good answer now and then does not help: three of the last six are garbage
        assignment = run.assign("bad")
        assert assignment is not None
        run.deliver(assignment, answer).result(timeout=5)
    assert run.assign("bad") is None
    good = run.assign("good")
    assert good is not None
    run.deliver(good, step(1.0)).result(timeout=5)
    thread.join(5)
    assert [(row.client, row.reason) for row in run.journal.entries(Event.QUARANTINED)] == [
        ("bad", "3 of its last answers could not be judged")
    ]
    run.close()
    again = federation(max_refusals=3, run_dir=tmp_path, resume=True)
    assert again.quarantined("bad")
    assert not again.quarantined("good")
    again.close()


def test_stop_ends_the_run_and_no_more_work_is_given() -> None:
    run = federation()
    thread, results = in_background(run)
    run.stop()
    thread.join(5)
    assert len(results) == 1
    assert run.assign("a") is None
    run.close()


def test_progress_is_reported_and_once_more_at_the_end() -> None:
    seen: list[Status] = []
    run = federation(stop_after_seconds=0.35, progress_seconds=0.1, report=seen.append)
    assignment = run.assign("a")
    assert assignment is not None
    run.deliver(assignment, step(1.0))
    run.run()
    assert len(seen) >= 3
    assert (seen[-1].version, seen[-1].accepted, seen[-1].rejected, seen[-1].num_clients) == (1, 1, 0, 1)
    run.close()


def test_a_target_needs_both_metric_and_value() -> None:
    with pytest.raises(SettingsError, match="go together"):
        FederationSettings(stop_at_metric="accuracy")


def test_a_metric_to_stop_at_needs_an_evaluation() -> None:
    with pytest.raises(SettingsError, match=r"stop_at_metric = 'accuracy' needs an evaluate function"):
        federation(stop_at_metric="accuracy", stop_at_value=0.9)
