import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from secureafl import Layout
from secureafl.errors import LayoutError

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "steps": np.array(12, np.int64),
    "bias": np.array([7.5], np.float64),
    "mask": np.array([True, False]),
}

judged_arrays = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    elements=st.integers(-1000, 1000).map(float),  # whole numbers that all three types hold exactly
)
carried_arrays = hnp.arrays(
    st.one_of(hnp.integer_dtypes(endianness="="), hnp.unsigned_integer_dtypes(endianness="="), hnp.boolean_dtypes()),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@st.composite
def models(draw: st.DrawFn) -> dict[str, npt.NDArray[Any]]:
    """At least one floating-point array, and integer arrays anywhere among them."""
    arrays = [*draw(st.lists(judged_arrays, min_size=1, max_size=4)), *draw(st.lists(carried_arrays, max_size=4))]
    return {f"array-{place}": array for place, array in enumerate(draw(st.permutations(arrays)))}


def test_only_floating_point_arrays_are_in_the_vector() -> None:
    layout = Layout.of(ARRAYS)
    assert layout.dim == 7
    flat = layout.flatten(ARRAYS)
    assert flat.dtype == np.float32
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 7.5]
    assert list(layout.carried) == ["steps", "mask"]


@given(models())
def test_unflatten_gives_the_whole_model_back(arrays: dict[str, npt.NDArray[Any]]) -> None:
    layout = Layout.of(arrays)
    flat = layout.flatten(arrays)
    assert flat.shape == (sum(a.size for a in arrays.values() if a.dtype.kind == "f"),)
    back = layout.unflatten(flat)
    assert list(back) == list(arrays), "clients that go by position need the model's own order"
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@given(models(), st.randoms())
def test_what_stands_in_integer_arrays_changes_nothing(arrays: dict[str, npt.NDArray[Any]], random: Any) -> None:
    layout = Layout.of(arrays)
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    others = {name: 1 - array.astype(np.int64) for name, array in arrays.items() if array.dtype.kind != "f"}
    kept = random.sample(sorted(others), k=random.randint(0, len(others)))
    sent = floats | {name: others[name] for name in kept}
    flat = layout.flatten(sent)
    np.testing.assert_array_equal(flat, layout.flatten(arrays))
    for name in others:
        np.testing.assert_array_equal(layout.unflatten(flat)[name], arrays[name])


def test_integers_beyond_float32_are_kept_exactly() -> None:
    layout = Layout.of({"w": np.zeros(1), "seen": np.array(2**53 + 1)})
    assert layout.unflatten(np.zeros(1, np.float32))["seen"] == 2**53 + 1


def test_order_is_fixed_by_the_first_model_not_by_the_mapping_at_hand() -> None:
    layout = Layout.of(ARRAYS)
    shuffled = dict(reversed(ARRAYS.items()))
    np.testing.assert_array_equal(layout.flatten(shuffled), layout.flatten(ARRAYS))


def test_unflatten_returns_copies() -> None:
    arrays = {name: array.copy() for name, array in ARRAYS.items()}
    layout = Layout.of(arrays)
    flat = layout.flatten(arrays)
    arrays["mask"][:] = False
    for array in layout.unflatten(flat).values():
        array[...] = 0
    assert flat[1] == 1
    assert layout.unflatten(flat)["mask"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": None}, "arrays missing: weight"),
        ({"more": np.zeros(1)}, "arrays not in the model: more"),
        ({"weight": np.zeros((3, 2))}, r"'weight' has shape \(3, 2\); the model has \(2, 3\)"),
        ({"mask": np.zeros(3, bool)}, r"'mask' has shape \(3,\); the model has \(2,\)"),
        ({"bias": np.array(["x"])}, "only real numbers"),
    ],
)
def test_misfits_are_named(change: dict[str, npt.NDArray[Any] | None], message: str) -> None:
    arrays = {name: array for name, array in {**ARRAYS, **change}.items() if array is not None}
    with pytest.raises(LayoutError, match=message):
        Layout.of(ARRAYS).flatten(arrays)


def test_vector_of_wrong_length_is_named() -> None:
    with pytest.raises(LayoutError, match=r"\(3,\).*needs \(7,\)"):
        Layout.of(ARRAYS).unflatten(np.zeros(3, np.float32))


def test_a_model_needs_real_arrays_and_something_to_train() -> None:
    with pytest.raises(LayoutError, match="at least one array"):
        Layout.of({})
    with pytest.raises(LayoutError, match="'z' has dtype complex128"):
        Layout.of({"w": np.zeros(1), "z": np.zeros(1, complex)})
    with pytest.raises(LayoutError, match=r"floating-point array to train; it has 'steps' \(int64\), 'mask' \(bool\)"):
        Layout.of({"steps": ARRAYS["steps"], "mask": ARRAYS["mask"]})


def test_a_layout_describes_itself_in_json() -> None:
    rows = Layout.of(ARRAYS).describe()
    steps, mask = (hashlib.sha256(ARRAYS[name].tobytes()).hexdigest() for name in ("steps", "mask"))
    assert rows == [
        ["weight", "float32", [2, 3], "judged", None],
        ["steps", "int64", [], "carried", steps],
        ["bias", "float64", [1], "judged", None],
        ["mask", "bool", [2], "carried", mask],
    ]
    assert json.loads(json.dumps(rows)) == rows


def test_other_carried_values_are_another_description() -> None:
    other = {**ARRAYS, "mask": np.array([False, True])}
    assert Layout.of(other).describe() != Layout.of(ARRAYS).describe()
    trained = {**ARRAYS, "weight": np.ones((2, 3), np.float32)}
    assert Layout.of(trained).describe() == Layout.of(ARRAYS).describe()
