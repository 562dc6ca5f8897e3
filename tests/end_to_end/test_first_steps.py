"""The first thing a stranger runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "first_steps.py"


def test_the_example_is_short_enough_to_read_at_once() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.end_to_end
def test_liars_ruin_asyncsgd_and_not_secureafl() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120, check=True)
    distance = {
        name: float(re.search(rf"{name} +│ +(\S+)", done.stdout).group(1))  # type: ignore[union-attr]
        for name in ("asyncsgd", "kardam", "secureafl")
    }
    assert distance["secureafl"] < 1.0 < distance["kardam"] < distance["asyncsgd"]
    assert "too-long" in done.stdout
    shown = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        if row := re.match(r"│ (\w+) +│ +(\S+) │ +(\d+)% │ +(\d+)% │", line):
            said = re.search(rf"│ {row[1]} +│ +(\S+) │ +(\d+)% │ +(\d+)% │", done.stdout)
            assert said is not None
            assert [float(one) for one in said.groups()] == pytest.approx(
                [float(one) for one in row.groups()[1:]], rel=0.05
            )
    assert "torch" not in done.stderr


@pytest.mark.end_to_end
def test_a_stage_of_ones_own_judges_beside_the_others() -> None:
    example = ROOT / "examples" / "own_stage.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout.split(":")[1].split()[0]) < 1.0
    assert re.search(r"\d+ longer-than-before", done.stdout)


def snippet(page: str) -> str:
    """All Python code blocks of a page, joined, but for those that need an app of the reader's."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return "\n".join(block for block in blocks if "my_app" not in block)


@pytest.mark.end_to_end
def test_the_code_shown_in_the_readme_runs(tmp_path: Path) -> None:
    shown = snippet("README.md")
    brief = shown.replace('"rounds": 300', '"rounds": 40')
    assert brief != shown
    done = subprocess.run([sys.executable, "-c", brief], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout
