from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.postgres import PostgresServer
from tests.server.record.test_run import FACTS, advance, machine, settings, state, undisturbed
from tests.server.recorded_runs import record

from secureafl.errors import StoreError
from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.run import Run
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.review.copying import copy
from secureafl.server.review.verify import verify
from secureafl.types import Array


def dump(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in (folder / "snapshots").iterdir()}
    return {**files, "model": (folder / "model.safetensors").read_bytes()}


@pytest.fixture(params=["database", "objects in a folder", "objects in s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path, run_url: RunUrl) -> RunUrl:
    """Where the copy goes, and its bytes."""
    if request.param == "database":
        return run_url
    objects = request.getfixturevalue("bucket") if request.param.endswith("s3") else str(tmp_path / "objects")
    return replace(run_url, objects=objects)


@pytest.mark.parametrize("kept", [{}, {"keep_rows": 30}, {"max_journal_bytes": 1000}])
def test_a_run_goes_to_a_database_and_back_bit_for_bit(
    kept: dict[str, int], tmp_path: Path, target: RunUrl, postgres: PostgresServer
) -> None:
    run = Run(machine(), settings(tmp_path / "run", **kept), facts=FACTS)
    advance(run, 90)
    run.finish()
    run.close()
    (tmp_path / "run" / "model.safetensors").write_bytes(np.arange(3_000_000, dtype=np.float32).tobytes())
    whole = verify(tmp_path / "run")
    assert copy(tmp_path / "run", target) == whole
    [(in_database,)] = postgres.execute(target, "SELECT count(update_bytes) FROM updates")
    assert (in_database > 0) == (target.objects is None)
    run_url = replace(target, objects=None)  # whoever reads the run, or resumes it, need not know
    resumed = Run.resume(machine(), settings(run_url, **kept), facts=FACTS)
    assert state(resumed) == undisturbed(90)
    resumed.close()
    gone_on = copy(run_url, tmp_path / "back")
    assert gone_on.head is not None
    assert whole.head is not None
    assert gone_on.head.number == whole.head.number + 1, "it was resumed"
    assert dump(tmp_path / "back") == dump(tmp_path / "run")
    resumed = Run.resume(machine(), settings(tmp_path / "back", **kept), facts=FACTS)
    advance(resumed, 10)
    assert state(resumed) == undisturbed(100)
    resumed.close()


def test_a_live_run_is_not_copied(tmp_path: Path, run_url: RunUrl) -> None:
    run = Run(machine(), settings(tmp_path / "run"), facts=FACTS)
    with pytest.raises(StoreError, match="is in use: stop its server first"):
        copy(tmp_path / "run", run_url)
    run.close()


def test_a_place_that_holds_a_run_is_not_written_over(tmp_path: Path, run_url: RunUrl) -> None:
    record(tmp_path / "run", 20).journal.close()
    copy(tmp_path / "run", run_url)
    with pytest.raises(StoreError, match="already holds a run"):
        copy(tmp_path / "run", run_url)


def test_a_damaged_run_is_not_copied_and_leaves_nothing(
    tmp_path: Path, run_url: RunUrl, postgres: PostgresServer
) -> None:
    record(run_url, 20).journal.close()
    postgres.execute(run_url, "UPDATE updates SET update_bytes = substr(update_bytes, 2) WHERE number = 4")
    with pytest.raises(StoreError, match="the update in row 4 is damaged"):
        copy(run_url, tmp_path / "copy")
    record(tmp_path / "copy", 5).journal.close()  # the place is free


def test_a_large_state_is_kept_in_parts(run_url: RunUrl, postgres: PostgresServer) -> None:
    store = store_of(run_url)
    hold = store.hold()
    large: dict[str, Array] = {"a": np.arange(2_500_000, dtype=np.float32), "b": np.arange(5, dtype=np.int64)}
    snapshots = Snapshots(store.files)
    digest = snapshots.write(7, large)
    hold.release()
    assert postgres.execute(run_url, "SELECT count(*) FROM files") == [(3,)]
    found = snapshots.read(7, digest)
    assert set(found) == {"a", "b"}
    np.testing.assert_array_equal(found["a"], large["a"])
    np.testing.assert_array_equal(found["b"], large["b"])
    with pytest.raises(StoreError, match=r"snapshots/000000000008\.safetensors: No such file"):
        snapshots.read(8, digest)
    postgres.execute(run_url, "UPDATE files SET content = substr(content, 2) WHERE part = 1")
    with pytest.raises(StoreError, match="is damaged: its SHA-256 is not the one on record"):
        snapshots.read(7, digest)
