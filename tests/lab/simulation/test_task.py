from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from secureafl.errors import LayoutError, SettingsError
from secureafl.lab.arrays import Images, Labels
from secureafl.lab.data import Trigger
from secureafl.lab.simulation.models import build
from secureafl.lab.simulation.task import PREDICT_BATCH, Task, make_deterministic
from secureafl.lab.streams import stream
from secureafl.types import Vector

SHAPE = (1, 12, 12)


@pytest.fixture(scope="module")
def task() -> Task:
    return Task("small-cnn", 3, SHAPE)


@pytest.fixture(scope="module")
def regression() -> Task:
    return Task("small-cnn", None, SHAPE)


def samples(num_samples: int = 5) -> tuple[Images, Labels]:
    rng = stream(0, "samples")
    return rng.integers(0, 256, (num_samples, *SHAPE), dtype=np.uint8), rng.integers(0, 3, num_samples)


def test_initial_parameters_depend_on_the_seed_alone(task: Task) -> None:
    torch.manual_seed(1)
    first = task.initial(0)
    before = torch.get_rng_state()
    second = task.initial(0)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(Task("small-cnn", 3, SHAPE).initial(0), first)
    assert first.dtype == np.float32
    assert first.shape == (task.dim,) == (task.layout.dim,)
    assert not np.array_equal(task.initial(1), first)


def test_gradient_is_that_of_plain_pytorch(task: Task) -> None:
    params = task.initial(0)
    x, y = samples()
    net = build("small-cnn", SHAPE, 3)
    net.load_state_dict({name: torch.from_numpy(a) for name, a in task.layout.unflatten(params).items()})
    pixels = torch.from_numpy((x / 255 - 0.5) / 0.5).to(torch.float32)
    functional.cross_entropy(net(pixels), torch.from_numpy(y)).backward()  # type: ignore[no-untyped-call]
    expected = np.concatenate([p.grad.numpy().reshape(-1) for p in net.parameters() if p.grad is not None])
    np.testing.assert_allclose(task.gradient(params, x, y), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(task.predict(params, x), net(pixels).detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("which", ["task", "regression"])
def test_gradient_agrees_with_finite_differences(which: str, request: pytest.FixtureRequest) -> None:
    task: Task = request.getfixturevalue(which)
    params, (x, y) = task.initial(0), samples(20)
    gradient = task.gradient(params, x, y)
    step = 1e-2 * gradient / np.linalg.norm(gradient)
    slope = (task.loss(params + step, x, y) - task.loss(params - step, x, y)) / 2e-2
    assert slope == pytest.approx(float(np.linalg.norm(gradient)), rel=0.05)


def test_steps_downhill_reduce_the_loss(task: Task) -> None:
    params, (x, y) = task.initial(0), samples(20)
    before = task.loss(params, x, y)
    assert before == pytest.approx(math.log(3), abs=0.3)
    for _ in range(10):
        params = params - np.float32(0.1) * task.gradient(params, x, y)
    assert task.loss(params, x, y) < before


def test_what_is_returned_stays_as_it_is(task: Task) -> None:
    x, y = samples()
    first = task.gradient(task.initial(0), x, y)
    kept = first.copy()
    task.gradient(task.initial(1), x, y)
    np.testing.assert_array_equal(first, kept)


def test_arguments_stay_as_they_are(task: Task) -> None:
    params, (x, y) = task.initial(0), samples()
    floats = (x / 255).astype(np.float32)
    copies = params.copy(), floats.copy(), y.copy()
    task.gradient(params, floats, y)
    for now, before in zip((params, floats, y), copies, strict=True):
        np.testing.assert_array_equal(now, before)


def test_same_bits_every_time(task: Task) -> None:
    params, (x, y) = task.initial(0), samples(32)
    first = task.gradient(params, x, y)
    task.gradient(task.initial(1), x, y)
    np.testing.assert_array_equal(task.gradient(params, x, y), first)
    np.testing.assert_array_equal(Task("small-cnn", 3, SHAPE).gradient(params, x, y), first)


def test_bytes_and_floats_are_the_same_images(task: Task) -> None:
    params, (x, _) = task.initial(0), samples()
    np.testing.assert_allclose(
        task.predict(params, x), task.predict(params, (x / 255).astype(np.float32)), rtol=1e-5, atol=1e-6
    )


def test_read_only_arrays_are_welcome(task: Task) -> None:
    params, (x, y) = task.initial(0), samples()
    expected = task.gradient(params, x, y)
    for array in (params, x, y):
        array.flags.writeable = False
    np.testing.assert_array_equal(task.gradient(params, x, y), expected)


def test_prediction_in_batches_with_a_transform(task: Task) -> None:
    params, (x, _) = task.initial(0), samples(PREDICT_BATCH + 3)
    trigger = Trigger.draw(1, stream(0, "trigger"))
    logits = task.predict(params, x, trigger.apply)
    assert logits.shape == (PREDICT_BATCH + 3, 3)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, task.predict(params, trigger.apply(x)))
    assert task.predict(params, x[:0]).shape == (0, 3)


def test_a_regression_has_one_output(regression: Task) -> None:
    params, (x, _) = regression.initial(0), samples()
    targets = np.linspace(-1, 1, 5, dtype=np.float32)
    outputs = regression.predict(params, x)
    assert outputs.shape == (5,)
    assert regression.loss(params, x, targets) == pytest.approx(float(np.mean((outputs - targets) ** 2)), rel=1e-5)
    assert regression.predict(params, x[:0]).shape == (0,)


def test_gradient_of_a_loss_of_ones_own(task: Task) -> None:
    params, (x, y) = task.initial(0), samples()
    labels = torch.from_numpy(y)
    gradient = task.loss_gradient(
        params, lambda forward, flat: functional.cross_entropy(forward(x), labels) + 0.5 * (flat**2).sum()
    )
    np.testing.assert_allclose(gradient, task.gradient(params, x, y) + params, rtol=1e-4, atol=1e-5)


def test_parameters_of_nan_are_carried_through(task: Task) -> None:
    x, y = samples()
    params: Vector = np.full(task.dim, np.nan, np.float32)
    assert np.isnan(task.predict(params, x)).all()
    assert np.isnan(task.gradient(params, x, y)).any()


def test_mistakes_are_named(task: Task) -> None:
    params, (x, y) = task.initial(0), samples()
    with pytest.raises(LayoutError, match="float32 is needed"):
        task.gradient(params[:-1], x, y)
    with pytest.raises(LayoutError, match="float64"):
        task.predict(params.astype(np.float64), x)
    with pytest.raises(SettingsError, match=r"\(N, 1, 12, 12\) is needed"):
        task.gradient(params, x[:, :, :, :-1], y)
    with pytest.raises(SettingsError, match="num_classes = 1"):
        Task("small-cnn", 1, SHAPE)
    with pytest.raises(SettingsError, match="std = 0"):
        Task("small-cnn", 2, SHAPE, std=0)


def test_deterministic_algorithms_can_be_asked_for() -> None:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        make_deterministic(1)
        assert torch.get_num_threads() == 1
        assert torch.are_deterministic_algorithms_enabled()
        for architecture in ("cnn", "resnet20"):  # nothing in them lacks a deterministic version
            task = Task(architecture, 3, SHAPE)
            assert np.isfinite(task.gradient(task.initial(0), *samples())).all()
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
