"""A full disk, a read-only folder, a damaged file: a clear message each, and no silent loss."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.end_to_end.crash_worker import FACTS, PROBLEM, advance, machine
from tests.postgres import is_installed, running

from secureafl.errors import StoreError
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.record.sqlite import read_journal

pytestmark = pytest.mark.end_to_end


@contextlib.contextmanager
def mounted(target: Path, mebibytes: int) -> Iterator[Path]:
    """A real file system of this size; needs the right to mount."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    target.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(target)]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 4) as disk:
        yield disk


def make_room(disk: Path) -> None:
    """What an operator does."""
    (disk / "ballast").unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=512m", str(disk)], check=True)


def leave_free(disk: Path, num_bytes: int) -> None:
    """Fill the disk up to so many bytes."""
    status = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_frsize - num_bytes))


def test_a_full_disk_ends_the_run_and_what_was_acknowledged_is_there_after(small_disk: Path) -> None:
    kept = StoreSettings(run_dir=small_disk / "run", snapshot_every=10_000)
    acknowledged, said = fill(kept)
    assert re.search(r"run\.db cannot be written: database or disk is full", said)
    assert acknowledged > 5
    make_room(small_disk)
    goes_on_from(acknowledged, kept)


def fill(settings: StoreSettings) -> tuple[int, str]:
    """Arrivals until one fails: how many were acknowledged, and what the server said then."""
    run = Run(machine(), settings, facts=FACTS)
    acknowledged = 0
    try:
        while True:
            advance(run)
            acknowledged += 1
    except StoreError as error:
        with pytest.raises(StoreError):
            run.issue("client-0")
        return acknowledged, str(error)
    finally:
        run.close()


def goes_on_from(acknowledged: int, settings: StoreSettings) -> None:
    """What was acknowledged is there, and nothing else; the run takes the next arrival."""
    resumed = Run.resume(machine(), settings, facts=FACTS)
    assert resumed.machine.model.version == acknowledged
    undisturbed = Run(machine())
    for _ in range(acknowledged):
        advance(undisturbed)
    np.testing.assert_array_equal(resumed.machine.model.params, undisturbed.machine.model.params)
    advance(resumed)
    resumed.close()


@pytest.fixture
def database_disk() -> Iterator[Path]:
    """A disk that PostgreSQL's own user can reach."""
    if not is_installed():
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="secureafl-disk-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with mounted(Path(folder) / "disk", 128) as disk:
            yield disk


def test_a_full_disk_under_the_database_ends_the_run_and_what_was_acknowledged_is_there_after(
    database_disk: Path,
) -> None:
    """With room for its write-ahead log, PostgreSQL itself stays up: it refuses what it cannot keep."""
    elsewhere = database_disk.with_name("wal")
    elsewhere.mkdir()
    with running(fsync=True, folder=database_disk, wal=elsewhere) as postgres:
        kept = StoreSettings(run_dir=postgres.url("full"), snapshot_every=10_000)
        leave_free(database_disk, 4 << 20)
        acknowledged, said = fill(kept)
        assert said.startswith(f"the run's database {kept.run_dir} cannot be written: could not extend file ")
        assert "Check free disk space" in said
        assert acknowledged > 5
        make_room(database_disk)
        goes_on_from(acknowledged, kept)


def test_a_database_that_a_full_disk_brought_down_has_all_that_was_acknowledged(
    database_disk: Path,
) -> None:
    """Without room for its write-ahead log, PostgreSQL ends. It is the operator's to start again."""
    with running(fsync=True, wal=database_disk) as postgres:
        kept = StoreSettings(run_dir=postgres.url("full"), snapshot_every=10_000)
        leave_free(database_disk, 1 << 20)
        acknowledged, said = fill(kept)
        assert str(kept.run_dir) in said
        assert acknowledged > 5
        assert "PANIC" in postgres.said
        assert "No space left on device" in postgres.said
        postgres.stop(signal.SIGQUIT)  # it may be recovering, for which there is no room either
        make_room(database_disk)
        postgres.start()
        goes_on_from(acknowledged, kept)


def test_a_disk_too_full_for_a_snapshot_says_so(small_disk: Path) -> None:
    run = Run(machine(), StoreSettings(run_dir=small_disk / "run", snapshot_every=12), facts=FACTS)
    for _ in range(11):
        advance(run)
    leave_free(small_disk, 8 * 4 * PROBLEM.dim)  # room for one more arrival, not for ten clients' history
    with pytest.raises(StoreError, match=r"cannot write a snapshot to .*No space left on device"):
        advance(run)
    assert run.machine.model.version == 12
    run.close()


def test_a_read_only_folder_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot write to the run's folder .*Read-only file system"):
        Run(machine(), StoreSettings(run_dir=small_disk / "run"), facts=FACTS)


def recorded(run_dir: Path, num_arrivals: int = 30) -> Path:
    run = Run(machine(), StoreSettings(run_dir=run_dir, snapshot_every=1000), facts=FACTS)
    for _ in range(num_arrivals):
        advance(run)
    run.close()
    return run_dir / "run.db"


def resume(run_dir: Path) -> int:
    run = Run.resume(machine(), StoreSettings(run_dir=run_dir, snapshot_every=1000), facts=FACTS)
    version = run.machine.model.version
    run.close()
    return version


def test_a_truncated_database_is_noticed(tmp_path: Path) -> None:
    database = recorded(tmp_path)
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=r"run\.db"):
        resume(tmp_path)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_flipped_byte_in_the_database_never_goes_unnoticed_or_does_no_harm(share: float, tmp_path: Path) -> None:
    database = recorded(tmp_path)
    content = bytearray(database.read_bytes())
    content[int(share * len(content))] ^= 0xFF
    database.write_bytes(content)
    try:
        version = resume(tmp_path)
    except StoreError as error:
        named = str(tmp_path) in str(error)
    else:  # the byte was in a part that no one reads: then nothing is lost
        journal = read_journal(database)
        named = version == sum(1 for _ in journal.entries(Event.ARRIVAL, payloads=True)) == 30
        journal.close()
    assert named
