"""Every measurement runs, tries itself out and leaves no trace: at full size they are run by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.tiny import write_tiny_fashion
from tests.postgres import is_installed

ROOT = Path(__file__).parents[2]
LONGER = {"clients", "front", "journal", "memory", "wire"}  # start servers, or fill memory
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[!_]*.py"))
PATIENCE = 600.0  # of a busy machine: on an idle one each is done in a minute


def written() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (ROOT / "results").glob("*.*")}


@pytest.mark.slow
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign) if name in LONGER else name for name in NAMES],
)
def test_a_measurement_tries_itself_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "journal" and not is_installed():
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    monkeypatch.setenv("SECUREAFL_DATA", str(write_tiny_fashion(tmp_path / "data")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = written()
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "┏" in done.stdout  # a table
    assert written() == before
