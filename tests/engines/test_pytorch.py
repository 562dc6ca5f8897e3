import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from secureafl.engines.flower.contents import to_arrays
from secureafl.engines.pytorch import load_trainable, trainable_state
from secureafl.errors import LayoutError


class HalfFrozen(nn.Module):
    """Two layers, of which the second is trained."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3, dtype=dtype).requires_grad_(False)
        self.head = nn.Linear(3, 1, dtype=dtype)


def test_only_what_requires_gradients_is_sent() -> None:
    model = HalfFrozen()
    assert {name: tuple(value.shape) for name, value in trainable_state(model).items()} == {
        "head.weight": (1, 3),
        "head.bias": (1,),
    }


def test_what_is_sent_is_a_copy() -> None:
    model = HalfFrozen()
    state = trainable_state(model)
    state["head.bias"].fill_(7.0)
    assert model.head.bias.tolist() != [7.0]


def test_a_model_goes_to_another_side_through_flower_and_leaves_the_frozen_part_alone() -> None:
    here, there = HalfFrozen(), HalfFrozen()
    frozen = there.body.weight.clone()
    load_trainable(there, ArrayRecord(trainable_state(here)).to_torch_state_dict())
    assert torch.equal(there.head.weight, here.head.weight)
    assert torch.equal(there.body.weight, frozen)
    assert not torch.equal(there.body.weight, here.body.weight)


def test_arrays_of_numpy_are_taken_also_if_they_are_read_only() -> None:
    model = HalfFrozen()
    arrays = {name: np.full(value.shape, 0.5, np.float32) for name, value in trainable_state(model).items()}
    for array in arrays.values():
        array.flags.writeable = False
    load_trainable(model, arrays)
    assert model.head.weight.tolist() == [[0.5, 0.5, 0.5]]
    assert model.head.weight.requires_grad


def test_bfloat16_travels_as_float32() -> None:
    model = HalfFrozen(torch.bfloat16)
    arrays = to_arrays(trainable_state(model))
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    arrays["head.bias"] = np.array([1.5], np.float32)
    load_trainable(model, arrays)
    assert model.head.bias.dtype == torch.bfloat16
    assert model.head.bias.tolist() == [1.5]


def test_faults_say_what_to_do_and_change_nothing() -> None:
    model = HalfFrozen()
    before = trainable_state(model)
    new = {name: value + 1.0 for name, value in before.items()}
    with pytest.raises(LayoutError, match=r"no array for 'head.bias': freeze what is not federated"):
        load_trainable(model, {"head.weight": new["head.weight"]})
    with pytest.raises(LayoutError, match=r"'body.bias' and 1 more is not trained here: freeze"):
        load_trainable(model, new | {"body.weight": torch.zeros(3, 2), "body.bias": torch.zeros(3)})
    with pytest.raises(LayoutError, match=r"'head.bias' has shape \(2,\), the parameter \(1,\): build the model"):
        load_trainable(model, new | {"head.bias": torch.zeros(2)})
    assert all(torch.equal(value, before[name]) for name, value in trainable_state(model).items())


def test_a_model_that_is_all_frozen_is_no_first_model() -> None:
    with pytest.raises(LayoutError, match="no parameter of this model requires gradients: add the adapters"):
        trainable_state(HalfFrozen().requires_grad_(False))
