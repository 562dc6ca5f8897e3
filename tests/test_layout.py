from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secureafl import Layout
from secureafl.errors import LayoutError

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.array([7.5], np.float64),
    "steps": np.array(12, np.int64),
}


def test_flatten_and_unflatten_are_inverse_and_keep_shape_and_type() -> None:
    layout = Layout.of(ARRAYS)
    assert layout.dim == 8
    flat = layout.flatten(ARRAYS)
    assert flat.dtype == np.float32
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 7.5, 12]
    back = layout.unflatten(flat)
    assert list(back) == ["weight", "bias", "steps"]
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_order_is_fixed_by_the_first_model_not_by_the_mapping_at_hand() -> None:
    layout = Layout.of(ARRAYS)
    shuffled = dict(reversed(ARRAYS.items()))
    np.testing.assert_array_equal(layout.flatten(shuffled), layout.flatten(ARRAYS))


def test_unflatten_returns_copies() -> None:
    layout = Layout.of(ARRAYS)
    flat = layout.flatten(ARRAYS)
    layout.unflatten(flat)["weight"][:] = -1
    assert flat[0] == 0


def test_integers_are_rounded_on_the_way_back() -> None:
    layout = Layout.of({"steps": np.array([3], np.int64)})
    assert layout.unflatten(np.array([2.6], np.float32))["steps"].tolist() == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": None}, "arrays missing: weight"),
        ({"more": np.zeros(1)}, "arrays not in the model: more"),
        ({"weight": np.zeros((3, 2))}, r"'weight' has shape \(3, 2\); the model has \(2, 3\)"),
        ({"bias": np.array(["x"])}, "only real numbers"),
    ],
)
def test_misfits_are_named(change: dict[str, npt.NDArray[Any] | None], message: str) -> None:
    arrays = {name: array for name, array in {**ARRAYS, **change}.items() if array is not None}
    with pytest.raises(LayoutError, match=message):
        Layout.of(ARRAYS).flatten(arrays)


def test_vector_of_wrong_length_is_named() -> None:
    with pytest.raises(LayoutError, match=r"\(3,\).*needs \(8,\)"):
        Layout.of(ARRAYS).unflatten(np.zeros(3, np.float32))


def test_a_model_needs_real_arrays() -> None:
    with pytest.raises(LayoutError, match="at least one array"):
        Layout.of({})
    with pytest.raises(LayoutError, match="'mask' has dtype bool"):
        Layout.of({"mask": np.array([True])})
