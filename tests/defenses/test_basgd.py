import numpy as np
from tests.support import Federation, Quadratic, model, update

from secureafl.defenses import BASGD, AsyncSGD, BASGDSettings
from secureafl.types import Reason

HERE = model(0, [0, 0])


def test_one_buffer_is_asyncsgd() -> None:
    problem = Quadratic()
    buffered = Federation(problem, BASGD(problem.dim, BASGDSettings(num_buffers=1)))
    plain = Federation(problem, AsyncSGD(problem.dim))
    buffered.run(100)
    plain.run(100)
    np.testing.assert_array_equal(buffered.machine.model.params, plain.machine.model.params)


def test_model_is_unchanged_until_the_last_buffer_fills() -> None:
    basgd = BASGD(2, BASGDSettings(num_buffers=3))
    for client in (0, 1, 0, 3, 4):
        verdict = basgd.step(update(client, HERE, [client, 1]), HERE)
        assert verdict.direction is None
        assert verdict.reason == Reason.BUFFERED
    last = basgd.step(update(2, HERE, [10, 1]), HERE)
    assert last.direction is not None
    assert last.direction.tolist() == [2.5, 1]  # buffers: mean(0, 0, 3) = 1, mean(1, 4) = 2.5, 10
    assert basgd.step(update(2, HERE, [10, 1]), HERE).direction is None  # all were emptied


def test_output_lies_within_the_buffer_range() -> None:
    rng = np.random.default_rng(0)
    for aggregate in ("median", "trimmed_mean"):
        basgd = BASGD(6, BASGDSettings(num_buffers=5, aggregate=aggregate, num_trimmed=2))
        deltas = rng.normal(size=(5, 6)).astype(np.float32)
        for client in range(5):
            verdict = basgd.step(update(client, model(0, np.zeros(6)), deltas[client]), model(0, np.zeros(6)))
        assert verdict.direction is not None
        assert (verdict.direction >= deltas.min(axis=0)).all()
        assert (verdict.direction <= deltas.max(axis=0)).all()
