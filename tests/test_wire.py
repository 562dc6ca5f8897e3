import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl import Reason, Vector
from secureafl.types import NamedArrays
from secureafl.wire import (
    BLOCK,
    Feedback,
    Wire,
    compress,
    compress_model,
    decompress,
    decompress_model,
    is_compressed,
    rounded,
)

WIRES: tuple[Wire, ...] = ("bfloat16", "int8")
LENGTHS = [1, 2, 3, 4, 5, 255, 256, 257, 1000]


def drawn(seed: int, length: int, spread: int = 6) -> Vector:
    """Values of very different sizes."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=length) * 10.0 ** rng.uniform(-spread, spread, length)).astype(np.float32)


def decompressed(data: bytes, dim: int) -> Vector:
    found = decompress(data, dim)
    assert not isinstance(found, Reason), found
    return found


def quantum(values: Vector, wire: Wire) -> Vector:
    """How far apart two neighbours are that a value is rounded to."""
    if wire == "bfloat16":
        return np.abs(values) * np.float32(2.0**-7)
    starts = np.arange(0, len(values), BLOCK)
    largest = np.maximum.reduceat(np.abs(values), starts)
    return (np.repeat(largest, BLOCK)[: len(values)] / 127).astype(np.float32)


def test_worked_out_by_hand() -> None:
    values = np.array([127.0, -63.4, 0.4, 0.6], np.float32)
    assert decompressed(compress(values, "int8"), 4).tolist() == [127.0, -63.0, 0.0, 1.0]
    assert decompressed(compress(np.array([1.00390625, 3.1415927], np.float32), "bfloat16"), 2).tolist() == [
        1.0,
        3.140625,
    ]


def test_the_bytes_are_those_of_the_page() -> None:
    made = compress(np.array([254.0, -2.0], np.float32), "int8")
    assert made == b"SAFW\x02\x00" + struct.pack("<HQ", 256, 2) + struct.pack("<f", 2.0) + b"\x7f\xff" + bytes(3)
    made = compress(np.array([1.0, -2.0], np.float32), "bfloat16")
    assert made == b"SAFW\x01\x00" + struct.pack("<HQ", 0, 2) + b"\x80\x3f\x00\xc0" + bytes(1)


@pytest.mark.parametrize("wire", WIRES)
@given(seed=st.integers(0, 1000), length=st.sampled_from(LENGTHS))
def test_a_value_comes_back_within_half_a_quantum(wire: Wire, seed: int, length: int) -> None:
    values = drawn(seed, length)
    compressed = compress(values, wire)
    assert is_compressed(compressed)
    assert not is_compressed(values.tobytes())
    found = decompressed(compressed, length)
    assert found.dtype == np.float32
    assert (np.abs(found - values) <= 0.501 * quantum(values, wire)).all()


def test_bytes_per_coordinate() -> None:
    values = drawn(0, 140_000)
    assert len(compress(values, "bfloat16")) < 0.501 * values.nbytes
    assert len(compress(values, "int8")) < 0.255 * values.nbytes


def test_a_large_layer_leaves_a_small_one_its_digits() -> None:
    large, small = np.full(10 * BLOCK, 100.0, np.float32), drawn(1, BLOCK, spread=0) / 1000
    found = decompressed(compress(np.concatenate([large, small]), "int8"), 11 * BLOCK)
    assert np.abs(found[-BLOCK:] - small).max() <= np.abs(small).max() / 253


@pytest.mark.parametrize("wire", WIRES)
@given(seed=st.integers(0, 1000), length=st.sampled_from(LENGTHS), num_updates=st.integers(1, 30))
def test_the_sum_of_what_arrives_stays_within_one_rounding_of_what_was_sent(
    wire: Wire, seed: int, length: int, num_updates: int
) -> None:
    feedback, sent, arrived = Feedback(wire), np.zeros(length), np.zeros(length)
    one = drawn(seed, length, spread=2)
    rng = np.random.default_rng(seed)
    for _ in range(num_updates):
        delta = (one * rng.uniform(0.5, 1.5, length)).astype(np.float32)
        compressed = feedback.compress(delta)
        assert compressed is not None
        sent += delta
        arrived += decompressed(compressed, length)
        assert feedback.residual is not None
        np.testing.assert_allclose(arrived + feedback.residual, sent, rtol=1e-5)
    # a block's largest value, with what was left of the one before, is below 1.51 times that of `one`
    assert (np.abs(arrived - sent) <= quantum(2 * one, wire) + 1e-5 * np.abs(sent)).all()


def test_without_feedback_small_values_would_never_arrive() -> None:
    delta = np.array([127.0, 0.3], np.float32)
    assert decompressed(compress(delta, "int8"), 2)[1] == 0.0
    feedback = Feedback("int8")
    arrived = sum(decompressed(feedback.compress(delta) or b"", 2)[1] for _ in range(100))
    assert abs(arrived - 30.0) <= 1.0


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_what_cannot_be_compressed_changes_nothing(wire: Wire, value: float) -> None:
    feedback = Feedback(wire)
    feedback.compress(np.array([0.3, 100.0], np.float32))
    before = feedback.residual
    assert before is not None
    made = feedback.compress(np.array([value, 3.4e38], np.float32))
    if made is not None:
        assert np.isfinite(decompressed(made, 2)).all()
    else:
        assert feedback.residual is before


def test_a_residual_of_another_model_is_not_used() -> None:
    feedback = Feedback("int8", np.full(3, 5.0, np.float32))
    assert decompressed(feedback.compress(np.array([127.0, 1.0], np.float32)) or b"", 2).tolist() == [127.0, 1.0]


@pytest.mark.parametrize("wire", WIRES)
def test_denormal_numbers_arrive_as_zero(wire: Wire) -> None:
    assert not decompressed(compress(np.full(4, 1e-40, np.float32), wire), 4).any()
    hostile = bytearray(compress(np.ones(4, np.float32), wire))
    hostile[16:20] = struct.pack("<f", 1e-42) if wire == "int8" else b"\x01\x00\x01\x00"
    assert not decompressed(bytes(hostile), 4)[:2].any()


@pytest.mark.parametrize("wire", WIRES)
def test_hostile_bytes_are_refused_and_nothing_is_allocated_for_them(wire: Wire) -> None:
    good = compress(drawn(2, 300), wire)
    assert decompress(good[:15], 300) is Reason.MALFORMED
    assert decompress(b"", 300) is Reason.MALFORMED
    for length in range(16, len(good)):
        assert decompress(good[:length], 300) is Reason.MALFORMED
    assert decompress(good + bytes(4), 300) is Reason.MALFORMED
    assert decompress(good[:-1] + b"\x01", 300) is Reason.MALFORMED
    assert decompress(b"SAFX" + good[4:], 300) is Reason.MALFORMED
    assert decompress(good[:4] + b"\x03" + good[5:], 300) is Reason.MALFORMED
    assert decompress(good[:5] + b"\x01" + good[6:], 300) is Reason.MALFORMED
    assert decompress(good[:8] + struct.pack("<Q", 2**63) + good[16:], 300) is Reason.WRONG_SHAPE
    assert decompress(good, 301) is Reason.WRONG_SHAPE
    other = 0 if wire == "int8" else 256
    assert decompress(good[:6] + struct.pack("<H", other) + good[8:], 300) is Reason.MALFORMED


def test_no_scale_makes_decompressing_raise() -> None:
    good = compress(np.full(4, 127.0, np.float32), "int8")
    for scale in (np.nan, np.inf, -np.inf, 3e38, -1.0, 0.0):
        found = decompressed(good[:16] + struct.pack("<f", scale) + good[20:], 4)
        np.testing.assert_array_equal(np.isfinite(found), abs(scale) <= 1.0)


@given(data=st.binary(max_size=80), dim=st.integers(1, 20))
def test_any_bytes_are_an_update_or_a_reason(data: bytes, dim: int) -> None:
    for made in (data, b"SAFW\x02\x00\x00\x01" + struct.pack("<Q", dim) + data, b"SAFW\x01\0\0\0" + data):
        found = decompress(made, dim)
        assert isinstance(found, Reason) or found.shape == (dim,)


def test_a_model_in_bfloat16_is_the_rounded_one() -> None:
    model: NamedArrays = {
        "w": drawn(3, 6).reshape(2, 3),
        "wide": drawn(4, 2).astype(np.float64),
        "half": np.ones(2, np.float16),
        "steps": np.array(7, np.uint16),
        "one": np.array(1.5, np.float32),
    }
    compressed = compress_model(model)
    assert {name: str(array.dtype) for name, array in compressed.items()} == {
        "w": "uint16",
        "wide": "uint16",
        "half": "float16",
        "steps": "uint16",
        "one": "uint16",
    }
    dtypes = {name: str(array.dtype) for name, array in model.items() if array.dtype.kind == "f"}
    found = decompress_model(compressed, dtypes)
    assert {name: (array.dtype, array.shape) for name, array in found.items()} == {
        name: (array.dtype, array.shape) for name, array in model.items()
    }
    np.testing.assert_array_equal(found["w"].reshape(-1), rounded(model["w"].reshape(-1)))
    assert found["steps"] == 7
    assert np.abs(found["w"] / model["w"] - 1).max() <= 2.0**-8
