import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from secureafl.errors import StateError
from secureafl.history import BASE, DELTA, Pages, Precision, expected_bytes

precisions = pytest.mark.parametrize("precision", ["float32", "float16"])


def filled(precision: Precision, num_clients: int = 40, dim: int = 130, path: Path | None = None) -> Pages:
    storage = Pages(dim, 4, precision, path=path)
    rng = np.random.default_rng(0)
    for slot in range(num_clients):
        assert storage.add() == slot
        for row in range(4):
            storage.write(slot, row, rng.normal(size=dim).astype(np.float32))
    return storage


@precisions
def test_references_come_back_as_they_were_written(precision: Precision) -> None:
    storage = filled(precision)
    delta, base = np.arange(130, dtype=np.float32), np.full(130, 1 / 3, np.float32)
    storage.write(39, DELTA, delta)
    storage.write(39, BASE, base)
    np.testing.assert_array_equal(storage.reference(39, DELTA), delta)
    np.testing.assert_array_equal(storage.reference(39, BASE), base)


def test_growing_moves_nothing() -> None:
    storage = filled("float32", num_clients=1)
    before = storage.chunks.at[0]
    for _ in range(100):
        storage.add()
    assert storage.chunks.at[0] == before


@precisions
def test_state_can_be_saved_and_loaded(precision: Precision) -> None:
    storage, other = filled(precision), Pages(130, 4, precision)
    storage.rebase(np.full(130, 0.1, np.float32))
    state = storage.state_dict()
    other.load_state_dict(state)
    assert {key: value.tobytes() for key, value in other.state_dict().items()} == {
        key: value.tobytes() for key, value in state.items()
    }


def test_state_of_another_precision_is_refused() -> None:
    with pytest.raises(StateError, match=r"float32; .*float16"):
        Pages(130, 4, "float16").load_state_dict(filled("float32").state_dict())


def test_half_precision_errs_by_less_than_a_thousandth_and_models_by_their_distance_from_the_origin() -> None:
    storage = Pages(1000, 4, "float16")
    rng = np.random.default_rng(0)
    origin = rng.normal(size=1000).astype(np.float32)
    delta, base = (1e-6 * rng.normal(size=1000)).astype(np.float32), origin + np.float32(1e-3)
    storage.rebase(origin)
    storage.add()
    storage.write(0, DELTA, delta)
    storage.write(0, BASE, base)
    state = storage.state_dict()
    rows, scales = np.asarray(state["rows"], np.float64), np.asarray(state["scales"], np.float64)
    stored = rows[0] * scales[0][:, None]
    assert np.linalg.norm(stored[DELTA] - delta) < 1e-3 * np.linalg.norm(delta)
    assert np.abs(stored[BASE] + origin - base).max() < 1e-6


def test_rows_of_zeros_and_of_the_smallest_numbers_survive_half_precision() -> None:
    storage = Pages(4, 4, "float16")
    storage.add()
    for value in (0.0, 1e-45, 1e18):
        storage.write(0, 2, np.full(4, value, np.float32))
        assert np.isfinite(np.asarray(storage.state_dict()["rows"], np.float64)).all()


@precisions
@pytest.mark.parametrize(("num_clients", "dim"), [(1, 10), (40, 130), (17, 100_000)])
def test_memory_is_what_was_announced(num_clients: int, dim: int, precision: Precision) -> None:
    storage = Pages(dim, 8, precision)
    for _ in range(num_clients):
        storage.add()
    assert storage.memory_bytes == expected_bytes(num_clients, dim, memory=3, precision=precision)


def test_bytes_per_client_and_coordinate() -> None:
    each = {p: expected_bytes(320, 64_000, 3, p) / (320 * 64_000) for p in ("float32", "float16")}
    assert each["float32"] == 32
    assert each["float16"] == pytest.approx(24, rel=1e-3)  # 16 read at each step, 8 for the exact references


@precisions
def test_memory_mapped_history_holds_the_same(precision: Precision, tmp_path: Path) -> None:
    mapped, plain = filled(precision, path=tmp_path).state_dict(), filled(precision).state_dict()
    assert all(np.array_equal(mapped[key], plain[key]) for key in plain)
    assert list(tmp_path.glob("rows-*.bin"))


@precisions
def test_what_was_released_is_read_again_from_its_file(precision: Precision, tmp_path: Path) -> None:
    pages = filled(precision, path=tmp_path)
    for slot in range(len(pages)):
        pages.release(slot)
    for key, value in filled(precision).state_dict().items():
        np.testing.assert_array_equal(pages.state_dict()[key], value)
    plain = filled(precision)
    plain.release(0)  # nothing to do


def test_a_small_page_holds_one_client(tmp_path: Path) -> None:
    pages = Pages(130, 4, path=tmp_path, page_bytes=1)
    for _ in range(3):
        pages.add()
    assert len(list(tmp_path.glob("rows-*.bin"))) == 3


PEAK = """
import numpy as np
from pathlib import Path
from secureafl.history import Pages

def kibibytes(name):  # not getrusage: its maximum is that of the process we were forked from
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1])

before = kibibytes("VmRSS")
storage = Pages(1_000_000, 8, "{precision}")
vector = np.ones(1_000_000, np.float32)
for _ in range(300):
    slot = storage.add()
    for row in range(8):
        storage.write(slot, row, vector)
print((kibibytes("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is counted in other units elsewhere")
@precisions
def test_peak_memory_at_300_clients_and_a_million_parameters(precision: Precision) -> None:
    script = PEAK.format(precision=precision)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(run.stdout) == pytest.approx(expected_bytes(300, 1_000_000, 3, precision), rel=0.1)
