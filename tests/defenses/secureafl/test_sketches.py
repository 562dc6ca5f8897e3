import numpy as np
import pytest

from secureafl.defenses.secureafl import SecureAFL, SecureAFLSettings
from secureafl.defenses.secureafl.directions import Directions
from secureafl.defenses.secureafl.sketches import BLOCK, LARGEST, WIDTH, SketchDtype, Sketches
from secureafl.types import ClientId, Model, Update, Vector

DIM = 64


def sketch(number: int) -> Vector:
    return np.random.default_rng(number).normal(size=WIDTH).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_read_is_what_was_written_to_half_a_scale(dtype: SketchDtype) -> None:
    kept = Sketches(dtype)
    for client in range(BLOCK + 3):
        kept[ClientId(client)] = sketch(client)
    kept[ClientId(5)] = 1e-3 * sketch(77)  # a scale of its own
    for client, written in ((0, sketch(0)), (5, 1e-3 * sketch(77)), (BLOCK + 2, sketch(BLOCK + 2))):
        off = np.abs(kept[ClientId(client)] - written).max()
        assert off == 0.0 if dtype == "float32" else 0.0 < off <= 0.501 * np.abs(written).max() / LARGEST
    kept[ClientId(6)] = np.zeros(WIDTH, np.float32)
    assert not kept[ClientId(6)].any()


def test_who_is_gone_leaves_room() -> None:
    kept = Sketches("int8")
    for client in range(BLOCK):
        kept[ClientId(client)] = sketch(client)
    del kept[ClientId(3)], kept[ClientId(3)]
    assert ClientId(3) not in kept
    kept[ClientId(BLOCK)] = sketch(1)
    assert len(kept) == BLOCK == len(kept.clients())
    assert kept.state_dict()["averages"].nbytes == BLOCK * WIDTH


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_saved_follows_from_who_came_and_went_and_is_read_block_by_block(dtype: SketchDtype) -> None:
    def follow(kept: Sketches, clients: range, gone: tuple[int, ...]) -> None:
        for client in clients:
            kept[ClientId(client)] = sketch(client)
        for client in gone:
            del kept[ClientId(client)]

    one, other = Sketches(dtype), Sketches(dtype)
    for kept in (one, other):
        follow(kept, range(3 * BLOCK), (5, BLOCK + 1, 2))
    resumed = Sketches(dtype)
    resumed.load_state_dict(other.state_dict())
    for kept in (one, resumed):
        follow(kept, range(100, 102), (7,))
    assert one.state_dict().keys() == resumed.state_dict().keys()
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(resumed.state_dict()[name], array)

    view = one.state_view()["averages"]
    before = list(view.tags)  # type: ignore[union-attr]
    assert b"".join(view.parts()) == one.state_dict()["averages"].tobytes()  # type: ignore[union-attr]
    one[ClientId(BLOCK)] = sketch(0)
    after = list(one.state_view()["averages"].tags)  # type: ignore[union-attr]
    assert [number for number in range(len(after)) if after[number] != before[number]] == [1]


def test_a_sum_of_rounded_sketches_does_not_drift() -> None:
    directions = Directions(DIM, seed=1, dtype="int8")
    for number in range(2000):
        directions._take(ClientId(number % 20), sketch(number), counts=True)
    exact = np.sum([directions.of(client).astype(np.float64) for client in directions.counted], axis=0)
    np.testing.assert_allclose(directions._sum, exact, atol=1e-9)


def test_a_saved_state_goes_on_alike_and_groups_are_found_as_before() -> None:
    def send(defense: SecureAFL, version: int) -> dict[str, float]:
        client = version % 30
        rng = np.random.default_rng([client, version])
        own = np.random.default_rng(100 if client < 9 else client).normal(size=DIM)  # nine are of one kind
        delta = np.ones(DIM) + 2.0 * own + 0.5 * rng.normal(size=DIM)
        model = Model(version, np.full(DIM, 0.01 * version, np.float32))
        return dict(defense.step(Update(ClientId(client), model, delta.astype(np.float32)), model).evidence)

    exact = SecureAFL(DIM, SecureAFLSettings(), seed=3)
    settings = SecureAFLSettings(sketch_dtype="int8")
    one, other = SecureAFL(DIM, settings, seed=3), SecureAFL(DIM, settings, seed=3)
    for version in range(300):
        send(exact, version)
        send(one, version)
    for version in range(300, 309):
        wanted, found = send(exact, version), send(one, version)
        assert found["alike"] >= 9.0
        assert abs(found["alike"] - wanted["alike"]) <= 1.0
    other.load_state_dict(one.state_dict())
    for version in range(309, 400):
        assert send(one, version) == send(other, version)
