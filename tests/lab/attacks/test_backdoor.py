import numpy as np

from secureafl import Model, Vector
from secureafl.lab.attacks.attack import Batch
from secureafl.lab.attacks.backdoor import BackdoorSettings, poison, project, train
from secureafl.testing.attack_views import batch, draws, trigger, view


def test_a_rounded_share_of_the_batch_is_marked_and_relabelled() -> None:
    here = batch(size=10)
    marked = poison(here, trigger(), 3, 0.26)  # round(2.6) = 3: positions 0, 3, 6
    chosen, others = [0, 3, 6], [1, 2, 4, 5, 7, 8, 9]
    np.testing.assert_array_equal(marked.x[chosen], trigger().apply(here.x[chosen]))
    np.testing.assert_array_equal(marked.x[others], here.x[others] / np.float32(255))
    assert marked.y[chosen].tolist() == [3, 3, 3]
    assert marked.y[others].tolist() == here.y[others].tolist()
    assert marked.x.dtype == np.float32


def test_nothing_to_mark_leaves_the_batch_alone() -> None:
    here = batch()
    assert poison(here, trigger(), 3, 0.0) is here


def test_poisoning_does_not_touch_the_clients_data() -> None:
    here, copy = batch(), batch()
    poison(here, trigger(), 0, 1.0)
    np.testing.assert_array_equal(here.x, copy.x)
    np.testing.assert_array_equal(here.y, copy.y)


def test_pseudo_gradient_of_two_steps_by_hand() -> None:
    seen = view(base=Model(0, np.zeros(131, np.float32)), server_lr=0.1)

    def gradient(params: Vector, here: Batch) -> Vector:
        return params - 1  # towards 1

    sent = train(seen, BackdoorSettings(num_steps=2, local_lr=0.5), gradient)  # x: 0 -> 0.5 -> 0.75
    np.testing.assert_allclose(sent, -7.5, rtol=1e-6)  # (0 - 0.75) / 0.1


def test_first_step_uses_the_batch_at_hand_and_later_ones_draw() -> None:
    used: list[Batch] = []

    def gradient(params: Vector, here: Batch) -> Vector:
        used.append(here)
        return params

    seen = view(draw_batch=draws(1))
    train(seen, BackdoorSettings(num_steps=3), gradient)
    assert used[0] is seen.batch
    np.testing.assert_array_equal(used[1].x, batch(1).x)
    np.testing.assert_array_equal(used[2].x, batch(2).x)


def test_projection_by_hand() -> None:
    assert project(np.array([3, 4], np.float32), 5.0).tolist() == [3, 4]
    np.testing.assert_allclose(project(np.array([6, 8], np.float32), 5.0), [3, 4], rtol=1e-6)
