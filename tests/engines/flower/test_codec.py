"""Malformed answers by the thousand, through the real decode-and-admit path: no exception, no change, all counted."""

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from tests.support import Quadratic

from secureafl import Layout, Machine, Reason
from secureafl.engines.flower import FlowerSettings
from secureafl.engines.flower.codec import Records, reported
from secureafl.engines.flower.contents import compressed_record
from secureafl.server import Federation, FederationSettings
from secureafl.server.record.entries import Event
from secureafl.wire import compress

LAYOUT = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(6, np.float32)})
NAMES = ["w", "b", "", "W", "w ", "config", "\u0000", "b" * 300]
DTYPES = ["float32", "float64", "float16", "int8", "uint64", "bool", "complex64", "<U4", "object", "nonsense", ""]
VALUES = [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-320, 3.4e38, 0.0]


def hostile(rng: np.random.Generator, dispatch: Message) -> Message:
    """One malformed answer of a random kind: every one is refused, whatever defense is in charge."""
    kind = int(rng.integers(8))
    if kind == 0:
        content = RecordDict()
    elif kind == 1:
        content = RecordDict(
            {"metrics": MetricRecord({"num-examples": int(rng.integers(2**40))}), "c": ConfigRecord({"x": b"?"})}
        )
    elif kind == 2:
        content = RecordDict({f"r{i}": _record(rng, ["w", "b"]) for i in range(2 + int(rng.integers(3)))})
    elif kind == 3:  # bytes that are no array
        content = RecordDict({"arrays": ArrayRecord({name: _garbage(rng) for name in ("w", "b")})})
    elif kind == 4:  # a header that lies about what follows
        good = _array(np.zeros((2, 3), np.float32))
        cut = good.data[: int(rng.integers(len(good.data)))]
        content = RecordDict({"arrays": ArrayRecord({"w": Array(good.dtype, good.shape, good.stype, cut), "b": good})})
    elif kind == 5:  # wrong names or shapes
        names = [str(name) for name in rng.choice(NAMES[1:], size=int(rng.integers(1, 4)), replace=False)]
        content = RecordDict({"arrays": _record(rng, names, wrong_shape=True)})
    elif kind == 6:  # a compressed update that is cut, damaged, of another length, or holds no numbers
        content = RecordDict({"arrays": compressed_record(_compressed(rng))})
    else:  # the right form with values no model can take
        arrays = {"w": np.zeros((2, 3)), "b": np.zeros(6)}
        arrays["b"][int(rng.integers(6))] = rng.choice([np.nan, np.inf, -np.inf, 1e300, 1e30, -1e19])
        content = RecordDict({"arrays": ArrayRecord({name: _array(array) for name, array in arrays.items()})})
    return Message(content, dst_node_id=1, message_type=dispatch.metadata.message_type)


def _array(values: np.ndarray) -> Array:
    return Array(values)


def _garbage(rng: np.random.Generator) -> Array:
    stype = str(rng.choice(["numpy.ndarray", "pickle", "", "torch"]))
    data = rng.bytes(int(rng.integers(200)))
    if rng.integers(2):
        data = b"\x93NUMPY\x01\x00" + data
    return Array(str(rng.choice(DTYPES)), (int(rng.integers(10)),), stype, data)


def _compressed(rng: np.random.Generator) -> bytes:
    good = compress(np.full(12, 3.0, np.float32), "int8" if rng.integers(2) else "bfloat16")
    damage = int(rng.integers(4))
    if damage == 0:
        return good[: int(rng.integers(len(good)))]
    if damage == 1:
        place = int(rng.choice([*range(6), *range(8, 16)]))  # in the header; another block may be right
        return good[:place] + bytes([good[place] ^ (1 << int(rng.integers(8)))]) + good[place + 1 :]
    if damage == 2:
        return good + rng.bytes(1 + int(rng.integers(100)))
    return good[:16] + b"\x80\x7f\x80\x7f" + good[20:]  # infinite as bfloat16, not a number as a scale


def _record(rng: np.random.Generator, names: list[str], *, wrong_shape: bool = False) -> ArrayRecord:
    shape = tuple(int(size) for size in rng.integers(0, 5, size=int(rng.integers(0, 4)))) if wrong_shape else (2, 3)
    return ArrayRecord({name: _array(np.full(shape, rng.choice(VALUES))) for name in names})


def campaign(num_answers: int, seed: int) -> Counter[str]:
    problem = Quadratic(num_clients=3, dim=12)
    settings = FederationSettings(max_refusals=None)
    machine = Machine(problem.defense("secureafl"), np.zeros(12, np.float32), settings.machine())
    federation = Federation(machine, LAYOUT, settings)
    records, rng = Records(LAYOUT, FlowerSettings(wire="int8")), np.random.default_rng(seed)
    before = hashlib.sha256(machine.model.params.tobytes()).digest()
    federation.begin()
    for number in range(num_answers):
        assignment = federation.assign(f"client-{number % 3}")
        assert assignment is not None
        dispatch = records.encode(assignment, 1 + number % 3, ttl=10.0)
        federation.deliver(assignment, records.decode(hostile(rng, dispatch), assignment))
    while federation.step(0.0):
        pass
    assert hashlib.sha256(machine.model.params.tobytes()).digest() == before, "the model did not move"
    reasons = Counter(entry.reason for entry in federation.journal.entries(Event.REFUSED))
    assert sum(reasons.values()) == num_answers, "each one is on record as refused"
    assert machine.model.version == 0, "and none has arrived"
    federation.close()
    return reasons


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"secureafl-epsilon": 2.5, "secureafl-delta": 1e-5, "loss": 0.3}, {"epsilon": 2.5, "delta": 1e-5}),
        ({"loss": 0.3}, {}),
        ({"secureafl-epsilon": [2.5], "secureafl-delta": [1e-5]}, {}),
        ({"secureafl-epsilon": float("inf"), "secureafl-delta": 1e-5}, {}),
    ],
)
def test_what_a_client_says_of_its_privacy_is_read_or_left(metrics: dict[str, Any], said: dict[str, float]) -> None:
    reply = Message(RecordDict({"metrics": MetricRecord(metrics)}), dst_node_id=1, message_type="train")
    assert reported(reply) == said


def test_three_thousand_hostile_answers() -> None:
    reasons = campaign(3_000, seed=0)
    assert {Reason.MALFORMED, Reason.WRONG_NAMES, Reason.NOT_FINITE, Reason.TOO_LARGE} <= set(reasons)


@pytest.mark.campaign
def test_a_hundred_thousand_hostile_answers() -> None:
    campaign(100_000, seed=1)
