import numpy as np
import pytest
from tests.support import Federation, Quadratic, model, update

from secureafl.defenses import AsyncSGD, FedBuff, FedBuffSettings
from secureafl.types import Reason

HERE = model(0, [0, 0])


def test_a_buffer_of_one_without_weights_is_asyncsgd() -> None:
    problem = Quadratic()
    settings = FedBuffSettings(buffer_size=1, clip_norm=None, staleness_exponent=0.0)
    buffered = Federation(problem, FedBuff(problem.dim, settings))
    plain = Federation(problem, AsyncSGD(problem.dim))
    buffered.run(100)
    plain.run(100)
    np.testing.assert_array_equal(buffered.machine.model.params, plain.machine.model.params)


def test_the_step_is_the_weighted_mean_of_clipped_updates() -> None:
    fedbuff = FedBuff(2, FedBuffSettings(buffer_size=2, clip_norm=5.0, scale=4.0))
    first = fedbuff.step(update(0, HERE, [30, 40]), HERE)
    assert (first.reason, first.direction) == (Reason.BUFFERED, None)
    assert first.evidence["shortened_to"] == pytest.approx(0.1)
    last = fedbuff.step(update(1, HERE, [2, 0]), model(3, [0, 0]))  # staleness 3: weight 1 / 2
    assert last.direction is not None
    assert last.direction.tolist() == pytest.approx([4 * (3 + 1) / 2, 4 * 4 / 2])
    assert fedbuff.step(update(1, HERE, [2, 0]), HERE).direction is None  # the buffer is empty again


def test_one_long_update_moves_the_model_by_a_buffers_share() -> None:
    fedbuff = FedBuff(2, FedBuffSettings(buffer_size=10, clip_norm=1.0))
    for client in range(9):
        fedbuff.step(update(client, HERE, [0, 0]), HERE)
    last = fedbuff.step(update(9, HERE, [1e6, 0]), HERE)
    assert last.direction is not None
    assert np.linalg.norm(last.direction) == pytest.approx(0.1)
