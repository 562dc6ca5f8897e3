from __future__ import annotations

import numpy as np
import pytest

from secureafl.errors import DataError
from secureafl.lab.data import Trigger
from secureafl.lab.data.characters import NUM_CHARACTERS, as_bytes, classes_of, windows
from secureafl.lab.data.trigger import as_floats
from secureafl.lab.simulation.models import CharMLP
from secureafl.lab.simulation.task import Task

ALL = np.arange(NUM_CHARACTERS)


def test_letters_in_either_case_spaces_and_the_rest() -> None:
    assert classes_of("aZ b9\n\u00e9").tolist() == [0, 25, 26, 1, 27, 27, 27]
    assert classes_of("").tolist() == []


def test_a_class_is_the_middle_of_its_share_of_bytes() -> None:
    # 255 / 28 = 9.107 a class; the first is at 4.55, the last at 250.45.
    assert as_bytes(np.array([0, 1, 27])).tolist() == [5, 14, 250]


def test_windows_are_evenly_spaced_and_labelled_by_what_follows() -> None:
    classes = np.arange(75) % NUM_CHARACTERS
    x, y = windows(classes, 3)  # 11 places to begin: 0, 5 and 10
    assert x.shape == (3, 8, 8)
    np.testing.assert_array_equal(x[1].reshape(-1), as_bytes(classes[5:69]))
    assert y.tolist() == [64 - 56, 69 - 56, 74 - 56]
    assert len(windows(classes, 100)[0]) == 11


def test_a_text_without_a_window() -> None:
    assert len(windows(np.zeros(65, np.int64), 5)[0]) == 1
    with pytest.raises(DataError, match="a text of 64 characters is too short"):
        windows(np.zeros(64, np.int64), 5)


def seen(task: Task, x: np.ndarray) -> list[int]:
    """The characters that a network is shown, in order."""
    found: list[int] = []
    net = task._net
    assert isinstance(net, CharMLP)
    hook = net.register_forward_pre_hook(lambda _, inputs: found.extend(net.characters(inputs[0]).flatten().tolist()))
    task.predict(task.initial(0), x)
    hook.remove()
    return found


def test_a_network_gets_back_every_class_from_bytes_and_from_floats() -> None:
    task = Task("char-mlp", NUM_CHARACTERS, (1, 8, 8))
    classes = np.concatenate([ALL, ALL, ALL[:8]])
    x = as_bytes(classes).reshape(1, 1, 8, 8)
    assert seen(task, x) == seen(task, as_floats(x)) == classes.tolist()


def test_a_trigger_is_sixteen_characters() -> None:
    task = Task("char-mlp", NUM_CHARACTERS, (1, 8, 8))
    x = as_bytes(np.zeros(64, np.int64)).reshape(1, 1, 8, 8)
    trigger = Trigger.draw(1, np.random.default_rng(0))
    marked = np.reshape(seen(task, trigger.apply(x)), (8, 8))
    np.testing.assert_array_equal(marked[4:, 4:], np.floor(trigger.values[0] * NUM_CHARACTERS))
    assert not marked[:4].any()
    assert not marked[:, :4].any()
    white = np.ones((1, 1, 8, 8), np.float32)  # the end of the range belongs to the last class
    assert set(seen(task, white)) == {NUM_CHARACTERS - 1}
