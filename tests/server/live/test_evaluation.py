import threading

import numpy as np

from secureafl import Layout, Model
from secureafl.server.live.evaluation import Evaluator

LAYOUT = Layout.of({"w": np.zeros(1, np.float32)})


def at(version: int) -> Model:
    return Model(version, np.array([version], np.float32))


def test_a_model_is_skipped_while_another_is_evaluated_and_the_last_never_is() -> None:
    gate, started = threading.Event(), threading.Event()

    def evaluate(arrays: dict[str, np.ndarray]) -> dict[str, float]:
        started.set()
        gate.wait(5)
        return {"w": float(arrays["w"][0])}

    evaluator = Evaluator(evaluate, LAYOUT)
    evaluator.offer(at(1), 0.1)
    assert started.wait(5)
    evaluator.offer(at(2), 0.2)
    gate.set()
    results = evaluator.finish(at(3), 0.3)
    assert [(r.version, r.metrics["w"]) for r in results] == [(1, 1.0), (3, 3.0)]


def test_the_last_model_is_not_evaluated_twice() -> None:
    calls: list[int] = []

    def evaluate(arrays: dict[str, np.ndarray]) -> dict[str, float]:
        calls.append(int(arrays["w"][0]))
        return {}

    evaluator = Evaluator(evaluate, LAYOUT)
    evaluator.offer(at(5), 0.0)
    evaluator.finish(at(5), 0.0)
    assert calls == [5]


def test_an_error_in_the_users_evaluation_is_handed_on() -> None:
    def evaluate(_: object) -> dict[str, float]:
        raise RuntimeError("no test data")

    errors: list[str] = []
    evaluator = Evaluator(evaluate, LAYOUT, on_error=lambda error: errors.append(str(error)))
    evaluator.offer(at(1), 0.0)
    assert evaluator.finish(at(2), 0.0) == []
    assert errors == ["no test data"] * 2
