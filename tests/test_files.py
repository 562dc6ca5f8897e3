import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from secureafl.errors import StateError
from secureafl.files import create_private, load_state, locked, remove_leftovers, save_json, save_state
from secureafl.types import StateDict


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state: StateDict = {
        "scalar": np.array(3, np.int64),
        "empty": np.empty((0, 3), np.int64),
        "rows": np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
    }
    save_state(tmp_path / "s.safetensors", state)
    loaded = load_state(tmp_path / "s.safetensors")
    assert loaded.keys() == state.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(loaded[key], array)
        assert loaded[key].shape == array.shape
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_half_written_files_are_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".snapshot.safetensors.4711").write_bytes(b"half")
    save_json(tmp_path / "result.json", {"a": 1})
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_broken_snapshot_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.safetensors").write_bytes(b"no")
    with pytest.raises(StateError, match="not a snapshot"):
        load_state(tmp_path / "s.safetensors")


def test_a_directory_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    def is_free() -> bool:
        with (tmp_path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with locked(tmp_path):
        assert not is_free()
    assert is_free()


def test_a_private_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            create_private(tmp_path / "key", b"secret")
    assert list(tmp_path.iterdir()) == []
    create_private(tmp_path / "key", b"secret")
    assert (tmp_path / "key").read_bytes() == b"secret"
