"""A full disk, a read-only folder, a damaged file: a clear message each, and no silent loss."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.end_to_end.crash_worker import FACTS, PROBLEM, advance, machine

from secureafl.errors import StoreError
from secureafl.server.record.entries import Event
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.record.sqlite import read_journal

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB; needs the right to mount."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(target)], check=True)
    yield target
    subprocess.run(["umount", "--lazy", str(target)], check=True)


def leave_free(disk: Path, num_bytes: int) -> None:
    """Fill the disk up to so many bytes."""
    status = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_frsize - num_bytes))


def test_a_full_disk_ends_the_run_and_what_was_acknowledged_is_there_after(small_disk: Path) -> None:
    run = Run(machine(), StoreSettings(run_dir=small_disk / "run", snapshot_every=10_000), facts=FACTS)
    acknowledged = 0

    def fill() -> None:
        nonlocal acknowledged
        while True:
            advance(run)
            acknowledged += 1

    with pytest.raises(StoreError, match=r"run\.db cannot be written: database or disk is full"):
        fill()
    assert acknowledged > 5
    run.close()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)  # the operator makes room
    resumed = Run.resume(machine(), StoreSettings(run_dir=small_disk / "run", snapshot_every=10_000), facts=FACTS)
    assert resumed.machine.model.version == acknowledged
    undisturbed = Run(machine())
    for _ in range(acknowledged):
        advance(undisturbed)
    np.testing.assert_array_equal(resumed.machine.model.params, undisturbed.machine.model.params)
    resumed.close()


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
