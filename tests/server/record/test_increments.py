"""Snapshots of what changed since the last: written, read back, damaged, kept and copied."""

from pathlib import Path

import numpy as np
import pytest
from tests.support import Quadratic

from secureafl import Machine, MachineSettings
from secureafl.errors import StoreError
from secureafl.server.record import increments, snapshots
from secureafl.server.record.address import Place
from secureafl.server.record.entries import Event
from secureafl.server.record.increments import Cut
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.copying import copy
from secureafl.server.review.verify import verify
from secureafl.types import Array, ArrayInRows

NUM_CLIENTS, DIM = 60, 2000
PROBLEM = Quadratic(num_clients=NUM_CLIENTS, dim=DIM)
EVERY = 4


def machine(**settings: object) -> Machine:
    return Machine(PROBLEM.defense("secureafl", **settings), np.zeros(DIM, np.float32), MachineSettings(server_lr=0.01))


def settings(place: Place, **changes: object) -> StoreSettings:
    return StoreSettings(**{"run_dir": place, "snapshot_every": 5, "full_snapshot_every": EVERY, **changes})  # type: ignore[arg-type]


def advance(run: Run, until: int) -> None:
    while (version := run.machine.model.version) < until:
        rng = np.random.default_rng(version)
        client = version if version < NUM_CLIENTS else int(rng.integers(NUM_CLIENTS))
        ticket = run.issue(f"client-{client}")
        run.receive(ticket.number, PROBLEM.noisy_gradient(client, run.machine.model_of(ticket).params, rng))


def state(run: Run) -> dict[str, bytes]:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in run.machine.state_dict().items()}


def files(place: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in sorted((place / "snapshots").glob("0*"))}


def is_full(path: Path) -> bool:
    return snapshots._State(path).header() is None


def recorded(place: Place, until: int = 100, **changes: object) -> Run:
    run = Run(machine(), settings(place, **changes))
    advance(run, until)
    run.close()
    return run


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "PIECE_BYTES", 1 << 10)


def test_a_full_one_comes_now_and_then_and_the_others_are_smaller(tmp_path: Path) -> None:
    recorded(tmp_path, 97)
    kinds = {version: is_full(path) for version, path in files(tmp_path).items()}
    assert kinds == {70: True, 75: False, 80: False, 85: False, 90: True, 95: False}, "two full ones are kept"
    sizes = {version: path.stat().st_size for version, path in files(tmp_path).items()}
    assert max(sizes[version] for version in (75, 80, 85, 95)) < 0.5 * sizes[70]


@pytest.mark.parametrize("until", [75, 87, 90, 99])
def test_a_resumed_run_goes_on_bit_for_bit(until: int, tmp_path: Path) -> None:
    run = recorded(tmp_path, until)
    resumed = Run.resume(machine(), settings(tmp_path))
    [note] = list(resumed.journal.entries(Event.RESUMED))
    assert note.reason == "", "from the newest snapshot"
    assert state(resumed) == state(run)
    advance(resumed, 130)
    resumed.close()
    undisturbed = Run(machine())
    advance(undisturbed, 130)
    assert state(resumed) == state(undisturbed)


@pytest.mark.parametrize("damage", ["flip", "remove"])
@pytest.mark.parametrize("version", [70, 75, 80, 85])
def test_a_damaged_link_falls_back_to_an_older_state_and_the_journal(damage: str, version: int, tmp_path: Path) -> None:
    run = recorded(tmp_path, 89)
    path = files(tmp_path)[version]
    if damage == "remove":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    if damage == "flip" or version < 85:  # one that nothing builds on is missed by nobody
        with pytest.raises(StoreError, match=path.name):
            verify(tmp_path)
    resumed = Run.resume(machine(), settings(tmp_path))
    [note] = list(resumed.journal.entries(Event.RESUMED))
    assert path.name in note.reason
    assert state(resumed) == state(run)
    resumed.close()


def test_without_a_full_one_and_without_the_rows_the_run_stops_and_says_why(tmp_path: Path) -> None:
    recorded(tmp_path, 89, keep_snapshots=1, keep_rows=1)
    assert list(files(tmp_path)) == [70, 75, 80, 85]
    files(tmp_path)[70].unlink()
    with pytest.raises(StoreError, match="no snapshot is intact, and rows 1 to"):
        Run.resume(machine(), settings(tmp_path, keep_snapshots=1, keep_rows=1))


def test_rows_of_the_journal_stay_as_long_as_a_full_snapshot_needs_them(tmp_path: Path) -> None:
    run = recorded(tmp_path, 89, keep_snapshots=1, keep_rows=1)
    for version in (85, 80, 75):
        files(tmp_path)[version].unlink()
    resumed = Run.resume(machine(), settings(tmp_path, keep_snapshots=1, keep_rows=1))
    assert state(resumed) == state(run), "from the full one, and the rows since"
    resumed.close()


def test_a_copy_has_the_whole_chain(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", 97)
    copied = copy(tmp_path / "run", tmp_path / "copy")
    assert copied.num_snapshots == len(files(tmp_path / "run"))
    resumed = Run.resume(machine(), settings(tmp_path / "copy"))
    assert state(resumed) == state(run)
    resumed.close()


def test_large_arrays_are_mapped_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAPPED_BYTES", 0)
    run = recorded(tmp_path, 100)
    resumed = Run.resume(machine(), settings(tmp_path))
    for path in files(tmp_path).values():
        path.unlink()
    assert state(resumed) == state(run)
    advance(resumed, 104)
    resumed.close()


def test_where_nearly_everything_changes_every_snapshot_is_full(tmp_path: Path) -> None:
    run = Run(machine(), settings(tmp_path, snapshot_every=60))
    advance(run, 240)
    run.close()
    assert {is_full(path) for path in files(tmp_path).values()} == {True}


def test_pieces_are_found_wherever_they_lie() -> None:
    numbers = np.arange(896, dtype=np.int64)  # 7 pieces of 1 kB
    first: dict[str, Array | ArrayInRows] = {"a": numbers, "b": np.zeros(0, np.float32), "c": np.array(3.0)}
    whole = Cut(first)
    assert whole.new_bytes == 7 * 1024 + 8
    chain = whole.chain((1, "x"))
    assert Cut(first, chain).new_bytes == 0
    assert Cut({**first, "a": np.roll(numbers, 128)}, chain).new_bytes == 0, "each in another place"
    numbers[200] += 1
    assert Cut(first, chain).new_bytes == 1024
