"""A smaller wire at the Grid seam: offered, taken up or not, refused if it is malformed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from rich.console import Console
from tests.engines.flower.fake_grid import FakeGrid, Node, answer, error, reply, weights_of

from secureafl.engines.flower import FlowerSettings, compress_updates, run_federation, sign_updates
from secureafl.engines.flower.contents import BFLOAT16, COMPRESSED, compressed_record
from secureafl.engines.signing import write_key_pair
from secureafl.errors import SettingsError
from secureafl.server import Result
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import read_journal
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare
from secureafl.types import NamedArrays
from secureafl.wire import Wire, compress, decompress, is_compressed

RNG = np.random.default_rng(0)
MODEL: NamedArrays = {
    "w": RNG.normal(size=300).astype(np.float32),
    "b": RNG.normal(size=(2, 2)),
    "steps": np.array(3, np.int64),
}
DIM = 304
QUICK: dict[str, Any] = {"discovery_seconds": 0.02, "poll_seconds": 0.001, "retry_seconds": 0.02, "num_workers": 4}
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def federate(grid: FakeGrid, run_dir: Path, **settings: Any) -> tuple[Result, list[Entry]]:
    made = FlowerSettings(**{**QUICK, "stop_after_seconds": 20.0, "run_dir": run_dir, **settings})
    result = run_federation(grid, MODEL, made, console=Console(quiet=True))  # type: ignore[arg-type]
    journal = read_journal(run_dir / "run.db")
    rows = list(journal.entries(payloads=True))
    journal.close()
    return result, rows


class Client:
    """A ClientApp with mods, the first outermost, that keeps the types of the arrays it was sent."""

    def __init__(self, train: Callable[[Message], Message], *mods: Mod, **node_config: str) -> None:
        self.train = train
        self.mods = mods
        self.types: list[set[str]] = []
        self.context = Context(run_id=1, node_id=1, node_config=dict(node_config), state=RecordDict(), run_config={})

    def __call__(self, message: Message) -> Message:
        self.types.append({array.stype for array in message.content.array_records["arrays"].values()})
        return self._call(0)(message, self.context)

    def _call(self, place: int) -> Callable[[Message, Context], Message]:
        if place == len(self.mods):
            return lambda message, context: self.train(message)
        return lambda message, context: self.mods[place](message, context, self._call(place + 1))


def towards(target: float) -> Callable[[Message], Message]:
    """Trains the floating-point arrays only, as the others are not used."""

    def node(message: Message) -> Message:
        given = weights_of(message)
        assert {name: array.dtype for name, array in given.items()} == {n: a.dtype for n, a in MODEL.items()}
        return answer(message, {n: w + 0.5 * (target - w) if w.dtype.kind == "f" else w for n, w in given.items()})

    return node


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
def test_who_can_compress_does_and_the_others_are_served_as_ever(tmp_path: Path, wire: Wire) -> None:
    able, unable = Client(towards(2.0), compress_updates), Client(towards(2.0))
    settings = {"stop_after_updates": 120, "server_lr": 0.2, "wire": wire, "defense": "asyncsgd"}
    result, rows = federate(FakeGrid({1: able, 2: unable}), tmp_path, **settings)
    np.testing.assert_allclose(result.arrays["w"], 2.0, atol=0.05)
    np.testing.assert_allclose(result.arrays["b"], 2.0, atol=0.05)
    assert able.types[0] == {"numpy.ndarray"}, "it has not shown yet that it can"
    assert all(types == {"numpy.ndarray", BFLOAT16} for types in able.types[1:]), "the integers are as they were"
    assert all(types == {"numpy.ndarray"} for types in unable.types)
    kept = {
        node: [row.payload or b"" for row in rows if row.event is Event.ARRIVAL and row.client == node] for node in "12"
    }
    assert min(map(len, kept.values())) > 20
    assert all(map(is_compressed, kept["1"]))
    assert {len(update) for update in kept["1"]} == {{"bfloat16": 16 + 2 * DIM + 1, "int8": 16 + 2 * 4 + DIM + 1}[wire]}
    assert {len(update) for update in kept["2"]} == {4 * DIM}
    with RecordedRun.open(tmp_path) as run:
        assert set(compare(run, run.machine()).distances) == {0.0}


@pytest.mark.parametrize("returns", ["delta", "gradient"])
def test_a_delta_or_a_gradient_is_compressed_as_it_is(tmp_path: Path, returns: str) -> None:
    sent = {"w": np.linspace(-1, 1, 300, dtype=np.float32), "b": np.full((2, 2), 0.5)}
    client = Client(lambda message: answer(message, sent), compress_updates)
    _, rows = federate(FakeGrid({1: client}), tmp_path, stop_after_updates=1, wire="int8", client_returns=returns)
    [row] = [row for row in rows if row.event is Event.ARRIVAL]
    found = decompress(row.payload or b"", DIM)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, [*sent["w"], *[0.5] * 4], atol=0.5 / 127)


def test_what_rounding_took_is_in_the_nodes_state_and_comes_with_the_next_update(tmp_path: Path) -> None:
    moved = np.linspace(-1, 1, 300, dtype=np.float32) ** 3
    client = Client(lambda message: answer(message, {"w": moved, "b": np.zeros((2, 2))}), compress_updates)
    settings = {"stop_after_updates": 30, "wire": "int8", "client_returns": "delta", "defense": "asyncsgd"}
    _, rows = federate(FakeGrid({1: client}), tmp_path, **settings)
    found = [decompress(row.payload or b"", DIM) for row in rows if row.event is Event.ARRIVAL]
    total = np.sum([delta for delta in found if isinstance(delta, np.ndarray)], axis=0)
    assert np.abs(total[:300] - len(found) * moved).max() <= 1.1 / 127, "one rounding, not thirty"
    once = decompress(compress(moved, "int8"), 300)
    assert np.abs(np.asarray(once) - moved).max() * 30 > 10 / 127, "which would be more"


def test_with_a_server_that_offers_nothing_all_stays_as_it_is(tmp_path: Path) -> None:
    client = Client(towards(2.0), compress_updates)
    _, rows = federate(FakeGrid({1: client}), tmp_path, stop_after_updates=3)
    assert {len(row.payload or b"") for row in rows if row.event is Event.ARRIVAL} == {4 * DIM}
    assert not client.context.state


def test_a_compressed_update_is_signed_as_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(f'1 = "{write_key_pair(tmp_path / "node.pem")}"\n')
    key = {"secureafl-key": str(tmp_path / "node.pem")}
    client = Client(towards(2.0), sign_updates, compress_updates, **key)
    settings = {"wire": "int8", "keys_file": tmp_path / "keys.toml", "stop_after_updates": 3}
    _, rows = federate(FakeGrid({1: client}), tmp_path / "run", **settings)
    assert all(is_compressed(row.payload or b"") for row in rows if row.event is Event.ARRIVAL)

    def flip(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        made = call_next(message, context)
        [record] = made.content.array_records.values()
        data = bytearray(record[COMPRESSED].data)
        data[-100] ^= 1
        made.content["arrays"] = compressed_record(bytes(data))
        return made

    forged = Client(towards(2.0), flip, sign_updates, compress_updates, **key)
    settings |= {"max_refusals": 2}
    _, rows = federate(FakeGrid({1: forged}), tmp_path / "forged", **settings)
    assert {row.reason for row in rows if row.event is Event.REFUSED} == {"bad-signature"}


def test_the_mods_in_the_other_order_say_what_to_write(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "node.pem")
    client = Client(towards(2.0), compress_updates, sign_updates, **{"secureafl-key": str(tmp_path / "node.pem")})
    failures = []

    def node(message: Message) -> Message:
        with pytest.raises(SettingsError, match=r"write mods=\[sign_updates, compress_updates\]") as caught:
            client(message)
        failures.append(caught.value)
        return error(message, 1, str(caught.value))

    _, rows = federate(FakeGrid({1: node}), tmp_path / "run", wire="int8", stop_after_seconds=0.5)
    assert failures
    assert any(row.event is Event.CLIENT_ERROR for row in rows)


GOOD = compress(np.ones(DIM, np.float32), "int8")
NOT_FINITE = GOOD[:16] + np.float32(np.nan).tobytes() + GOOD[20:]


@pytest.mark.parametrize(
    ("sent", "wire", "reason"),
    [
        (b"", "int8", "malformed"),
        (GOOD[:-4], "int8", "malformed"),
        (b"X" + GOOD[1:], "int8", "malformed"),
        (compress(np.ones(DIM + 1, np.float32), "int8"), "int8", "wrong-shape"),
        (bytes(100_000), "int8", "too-large"),
        (NOT_FINITE, "int8", "not-finite"),
        (GOOD, "float32", "wrong-names"),
    ],
)
def test_a_bad_compressed_update_is_refused_by_name(tmp_path: Path, sent: bytes, wire: Wire, reason: str) -> None:
    types: list[set[str]] = []

    def node(message: Message) -> Message:
        types.append({array.stype for array in message.content.array_records["arrays"].values()})
        return reply(message, RecordDict({"arrays": compressed_record(sent)}))

    result, rows = federate(FakeGrid({1: node, 2: Client(towards(2.0))}), tmp_path, wire=wire, stop_after_updates=60)
    assert {row.reason for row in rows if row.event is Event.REFUSED} == {reason}
    assert result.verdicts["1", reason] >= 5
    assert Event.QUARANTINED in {row.event for row in rows}
    if reason != "not-finite":  # that one could be read
        assert all(seen == {"numpy.ndarray"} for seen in types)


def test_a_node_that_fails_gets_the_next_model_as_it_is(tmp_path: Path) -> None:
    able = Client(towards(2.0), compress_updates)

    def node(message: Message) -> Message:
        return error(message, 1, "out of memory") if len(able.types) == 3 and failed() else able(message)

    calls: list[int] = []

    def failed() -> bool:
        calls.append(len(able.types))
        return len(calls) == 1

    federate(FakeGrid({1: node}), tmp_path, wire="bfloat16", stop_after_updates=6)
    plain = [types == {"numpy.ndarray"} for types in able.types]
    assert plain[:6] == [True, False, False, True, False, False]


def test_an_update_that_cannot_be_compressed_goes_as_it_is_and_is_refused_by_name(tmp_path: Path) -> None:
    broken: Node = Client(
        lambda message: answer(message, {"w": np.full(300, np.nan), "b": np.zeros((2, 2))}), compress_updates
    )
    misshapen: Node = Client(lambda message: answer(message, {"w": np.zeros(7)}), compress_updates)
    grid = FakeGrid({1: broken, 2: misshapen, 3: Client(towards(1.0), compress_updates)})
    _, rows = federate(grid, tmp_path, wire="int8", stop_after_updates=30)
    reasons = {(row.client, row.reason) for row in rows if row.event is Event.REFUSED}
    assert reasons == {("1", "not-finite"), ("2", "wrong-names")}


def test_who_does_not_know_the_types_cannot_take_them_for_numbers(tmp_path: Path) -> None:
    client = Client(towards(2.0), compress_updates)
    kept: list[ArrayRecord] = []

    def node(message: Message) -> Message:
        kept.append(message.content.array_records["arrays"])
        return client(message)

    federate(FakeGrid({1: node}), tmp_path, wire="int8", stop_after_updates=2)
    with pytest.raises(TypeError, match=BFLOAT16):
        kept[1]["w"].numpy()
