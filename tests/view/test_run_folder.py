from pathlib import Path

import pytest
from tests.view.journals import write_arrivals

from secureafl.errors import SecureAFLError, SettingsError
from secureafl.view.reader import RunReader
from secureafl.view.run_folder import MAX_DEPTH, SCAN_SECONDS, RunFolder, holds_runs
from secureafl.view.web.serve import open_place


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_runs_are_found_by_their_paths(tmp_path: Path) -> None:
    for name in ("b", "a/one", "a~one", "a/two words", ".hidden", "b/snapshots/deeper"):
        write_arrivals(tmp_path / name, 4)
    write_arrivals(tmp_path.joinpath(*"deep" * MAX_DEPTH), 4)
    (tmp_path / "no-run").mkdir()
    folder = RunFolder(tmp_path)
    assert {key: folder.name(key) for key in folder.found()} == {
        "a~one": "a/one",
        "a~two~words": "a/two words",
        "a~one~2": "a~one",
        "b": "b",
    }
    found = folder.reader("a~one~2")
    assert found is not None
    assert found.place == tmp_path / "a~one"
    assert folder.reader("c") is None


def test_a_run_that_begins_later_is_found_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    clock = Clock()
    write_arrivals(tmp_path / "first", 4)
    folder = RunFolder(tmp_path, clock=clock)
    assert folder.found() == ["first"]
    write_arrivals(tmp_path / "second", 4)
    assert folder.found() == ["first"], "not looked at again so soon"
    clock.now += SCAN_SECONDS
    assert folder.found() == ["first", "second"]
    (tmp_path / "first" / "run.db").unlink()
    clock.now += SCAN_SECONDS
    assert folder.found() == ["second"]


def test_a_run_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(b"no database")
    found = RunFolder(tmp_path).read("broken")
    assert isinstance(found, SecureAFLError)
    assert "broken" in str(found)


def test_a_place_is_a_run_or_a_folder_of_runs(tmp_path: Path) -> None:
    assert holds_runs(tmp_path)
    with pytest.raises(SettingsError, match="there is no run in"):
        open_place(tmp_path)
    run = write_arrivals(tmp_path / "run", 4)
    assert not holds_runs(run)
    assert isinstance(open_place(run), RunReader)
    assert isinstance(open_place(tmp_path), RunFolder)
