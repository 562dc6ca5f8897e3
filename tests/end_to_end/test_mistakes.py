"""The real command, used wrongly: one line on stderr that says what to do, no traceback, an exit code that is not 0."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.recorded_runs import record

COMMAND = Path(sys.executable).with_name("secureafl")
WITHOUT = "import sys; sys.modules[{package!r}] = None; from secureafl.cli import app; app(prog_name='secureafl')"


def complaint(*command: str | Path, cwd: Path) -> str:
    """What the command says on stderr, which must be one line."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a run, an empty folder, and a folder whose journal is no database."""
    record(tmp_path / "run", 10).journal.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_text("no database")
    return tmp_path


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("audit run --jsn", "Try: secureafl audit --help"),
        ("audt run", "Did you mean 'audit'?"),
        ("audit", "Missing argument 'RUN'"),
        ("audit empty", "there is no run.db in it; name the folder given as run-dir or --record"),
        ("audit broken", "not a database"),
        ("replay run --set tolerans=1", "did you mean 'tolerance'?"),
        ("replay run --defense secureafk", "did you mean 'secureafl'?"),
        ("eject run --client nobody --out fixed", "knows no client nobody"),
        ("lab run --dataset cifar10 --source empty --rounds 1", "set source or SECUREAFL_DATA to <directory>"),
        ("lab run --attack scalin", "did you mean 'scaling'?"),
        ("lab run --rounds 1 --out broken/run.db", "Not a directory: broken/run.db"),
        ("lab report demo --out empty", "there is no sweep 'demo'"),
    ],
)
def test_a_mistake_costs_one_line(arguments: str, message: str, place: Path) -> None:
    assert message in complaint(COMMAND, *arguments.split(), cwd=place)


@pytest.mark.end_to_end
@pytest.mark.parametrize("arguments", ["lab run", "lab sweep --list", "lab report demo"])
def test_without_the_laboratorys_packages_one_line_says_what_to_install(arguments: str, place: Path) -> None:
    line = complaint(sys.executable, "-c", WITHOUT.format(package="torch"), *arguments.split(), cwd=place)
    assert line == 'This needs torch, which is not installed: pip install "secureafl[lab]"'


@pytest.mark.end_to_end
def test_help_needs_no_extra(place: Path) -> None:
    command = [sys.executable, "-c", WITHOUT.format(package="torch"), "lab", "run", "--help"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=True)
    assert "--attack" in done.stdout
