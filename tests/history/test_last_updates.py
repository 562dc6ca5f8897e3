"""Rows by client, in each type and in each place: what is added to a sum is what is later taken away."""

import os
from pathlib import Path

import numpy as np
import pytest

from secureafl import kernels
from secureafl.defenses.secureafl import RunningMean, SecureAFL, SecureAFLSettings
from secureafl.errors import RowsError, SettingsError, StateError
from secureafl.history import KEPT_AS, LastUpdates, MappedRows, RowSettings, RowType, stores
from secureafl.types import Array, ClientId, Model, Update, Verdict

DIM = 700
NUM_CLIENTS = 24
KINDS: list[RowType] = ["float32", "float16", "bfloat16"]


def defense(kind: RowType, rows: RowSettings = RowSettings(), max_seats: int | None = 10) -> SecureAFL:
    return SecureAFL(DIM, SecureAFLSettings(history_dtype=kind, max_seats=max_seats), seed=3, rows=rows)


def send(secure: SecureAFL, version: int) -> Verdict:
    """Some clients come often, some are malicious, some send a gradient of which most is nought."""
    rng = np.random.default_rng(version)
    client = int(rng.integers(NUM_CLIENTS)) if version % 3 else version % 5
    delta = (np.ones(DIM) + 0.5 * rng.normal(size=DIM)) * 1e-3
    delta *= -10.0 if client in (2, 7) else 1.0
    delta[::3] = -0.0
    model = Model(version, np.full(DIM, 0.01 * version, np.float32))
    return secure.step(Update(ClientId(client), model, delta.astype(np.float32)), model)


def same(one: Verdict, other: Verdict) -> bool:
    alike = one.reason == other.reason and one.evidence == other.evidence
    return alike and np.array_equal(np.asarray(one.direction), np.asarray(other.direction))


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_is_always_that_of_the_rows_that_are_kept(kind: RowType) -> None:
    secure = defense(kind)
    for version in range(300):
        send(secure, version)
    mean = secure.stages.combine
    assert isinstance(mean, RunningMean)
    anew = np.zeros(DIM, np.int64)
    for client, weight in mean._weights.items():
        kernels.reweigh(anew, mean.rows.last_delta(client), 0, weight, mean.unit)
    np.testing.assert_array_equal(anew, mean._votes)
    assert len(mean.rows) == 10
    for client in mean.rows:
        row = mean.rows.read(client)
        assert row is not None
        assert mean.rows.store.read(row.place).dtype == KEPT_AS[kind]
        assert row.square == kernels.dot(mean.rows.last_delta(client), mean.rows.last_delta(client))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_bit_for_bit(kind: RowType) -> None:
    one, other = defense(kind), defense(kind)
    for version in range(150):
        send(one, version)
    other.load_state_dict(one.state_dict())
    for version in range(150, 260):
        assert same(send(one, version), send(other, version))
    for key, value in one.state_dict().items():
        assert np.asarray(value).tobytes() == np.asarray(other.state_dict()[key]).tobytes(), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_seats", [None, 10])
def test_rows_in_a_mapped_file_change_no_bit(
    kind: RowType, max_seats: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "SEGMENT_BYTES", 3 * 64 * 44)  # a few rows in each piece of the file
    memory, mapped = (
        defense(kind, max_seats=max_seats),
        defense(kind, RowSettings(rows="mapped", rows_dir=tmp_path), max_seats),
    )
    for version in range(300):
        assert same(send(memory, version), send(mapped, version)), version
    assert list(tmp_path.iterdir()) == [], "the file has no name: nobody takes it for rows after a crash"
    again = defense(kind, RowSettings(rows="mapped", rows_dir=tmp_path), max_seats)
    again.load_state_dict(mapped.state_dict())
    for version in range(300, 340):
        assert same(send(memory, version), send(again, version)), version


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_short_rows_change_few_verdicts(kind: RowType) -> None:
    long, short = defense("float32"), defense(kind)
    pairs = [(send(long, version).reason, send(short, version).reason) for version in range(300)]
    assert sum(first != second for first, second in pairs) <= 6


def test_a_row_of_another_type_is_refused() -> None:
    with pytest.raises(StateError, match="rows of 700 float16"):
        defense("float16").load_state_dict({**defense("float16").state_dict(), "combine.rows.rows": np.empty((0, DIM))})


def test_an_arrival_reads_one_row_and_writes_one() -> None:
    class Counting(stores.MemoryRows):
        calls: list[str] = []  # noqa: RUF012

        def read(self, place: int) -> Array:
            self.calls.append("read")
            return super().read(place)

        def write(self, place: int, row: Array) -> None:
            self.calls.append("write")
            super().write(place, row)

    for kind in KINDS:
        secure = SecureAFL(DIM, SecureAFLSettings(history_dtype=kind, alike=None, against_consensus=None), seed=3)
        mean = secure.stages.combine
        assert isinstance(mean, RunningMean)
        mean.rows.store = store = Counting()
        for version in range(120):
            send(secure, version)
            assert sorted(store.calls) in (["read", "write"], ["write"], ["read"]), "known, new, or rejected"
            store.calls.clear()


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    rows = LastUpdates(DIM, store=MappedRows(DIM, np.float32, tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    nothing = np.zeros(4, np.float32)
    rows.add(ClientId(0), nothing, nothing)
    vector = rows.vector(ClientId(0))
    with pytest.raises(RowsError, match="No space left on device"):
        rows.write(ClientId(0), vector, rows.fit(ClientId(0), vector, 1.0, 0.0))


def test_a_mapped_file_takes_room_for_the_rows_that_were_written(tmp_path: Path) -> None:
    store = MappedRows(1 << 20, np.float32, tmp_path)
    store.write(200, np.ones(1 << 20, np.float32))
    stat = os.fstat(store._file)
    assert stat.st_size > 200 << 22
    assert 512 * stat.st_blocks < 3 << 22


def test_settings_that_do_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="rows_dir does nothing with rows = 'memory'"):
        defense("float32", RowSettings(rows_dir=tmp_path))
    with pytest.raises(SettingsError, match="set rows_dir"):
        defense("float32", RowSettings(rows="mapped"))
    with pytest.raises(SettingsError, match="bfloat16"):
        SecureAFLSettings(aggregate="median", history_dtype="bfloat16")
    with pytest.raises(SettingsError, match="is for aggregate = 'running_mean'"):
        SecureAFL(4, SecureAFLSettings(aggregate="median"), rows=RowSettings(rows="mapped", rows_dir=tmp_path))


def test_what_clients_take_is_said_beforehand(tmp_path: Path) -> None:
    few = defense("float16", max_seats=10).client_memory()
    assert (few.row, few.max_rows, few.rows_in) == (2 * DIM, 10, "memory")
    assert few.in_memory(1000) == few.fixed + 10 * (few.row + few.beside) + 1000 * few.client
    assert "10 at most" in str(few)
    mapped = defense("float32", RowSettings(rows="mapped", rows_dir=tmp_path), max_seats=None).client_memory()
    assert mapped.elsewhere(1000) == 4 * DIM * 1000
    assert mapped.in_memory(1000) == mapped.fixed + 1000 * (mapped.beside + mapped.client)
    assert "max_seats limits it" in str(mapped)
    median = SecureAFL(DIM, SecureAFLSettings(aggregate="median")).client_memory()
    assert median.row >= 8 * DIM
