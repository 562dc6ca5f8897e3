"""Does what a page tells its reader to do, in order, in a folder of its own.

    ```python, ```toml      with a file's name in a comment on the first line: the reader saves it under that name, or
                            adds it to that file if the comment goes on with `, at the end`
    ```python               otherwise: typed into one interpreter, all such blocks of the page together, at the last one
    ```console              lines after `$ ` are typed into a shell, which stays the same for the whole page; other
                            lines are what it prints, where `...` stands for anything
    ```diff, ```text, …     are read, not run

Commands that set a machine up are left out, because the tests have one: `SETUP` lists them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
SETUP = ("pip install ", "python -m venv ", "source ", "git clone ")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^# ([\w./-]+\.\w+)(, at the end)?\n")
MARK = "\x1e"


@dataclass(frozen=True)
class Step:
    """One thing to do: a shell script, where it stands, and what it should print."""

    script: str
    told: str
    expected: str = ""


def steps(page: Path, staging: Path) -> list[Step]:
    """What the page says to do; files to be saved wait in `staging`."""
    blocks = [(found[1], found[2]) for found in FENCE.finditer(page.read_text())]
    typed = [place for place, (kind, text) in enumerate(blocks) if kind == "python" and not FILE.match(text)]
    found: list[Step] = []
    for place, (kind, text) in enumerate(blocks):
        if kind == "console":
            found += _commands(text)
        elif kind in ("python", "toml") and (name := FILE.match(text)):
            (staging / str(place)).write_text(text)
            save = f"cat {staging / str(place)} {'>>' if name[2] else '>'} {name[1]}"
            found.append(Step(f"mkdir -p $(dirname {name[1]}) && {save}", f"save {name[1]}"))
        elif typed and place == typed[-1]:
            (staging / "typed.py").write_text("\n".join(blocks[at][1] for at in typed))
            found.append(Step(f"python {staging / 'typed.py'}", "the Python blocks"))
    return found


def save_files(page: Path, directory: Path) -> None:
    """Save what the page says to save, and do nothing else."""
    for kind, text in FENCE.findall(page.read_text()):
        if kind in ("python", "toml") and (name := FILE.match(text)):
            with (directory / name[1]).open("a" if name[2] else "w") as file:
                file.write(text)


def _commands(text: str) -> list[Step]:
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        length = next(number for number, line in enumerate(lines, 1) if not line.endswith("\\"))
        command = "\n".join(lines[:length])
        if not command.startswith(SETUP):
            found.append(Step(command, command, "\n".join(lines[length:])))
    return found


def follow(page: Path, directory: Path, env: Mapping[str, str] | None = None, *, timeout: float = 400.0) -> list[str]:
    """Do all of it; what each step printed. A step that fails, or prints something else than shown, is an error."""
    staging, place = directory / "staging", directory / "here"
    staging.mkdir(parents=True)
    place.mkdir(exist_ok=True)
    todo = steps(page, staging)
    assert todo, f"{page} has nothing to run"
    script = "\n".join(["set -euo pipefail", *(f"printf '{MARK}'\n{step.script}" for step in todo)])
    printed = directory / "printed"
    with printed.open("wb") as out:
        status = _type(script, place, _environment(env or os.environ), out, timeout)
    outputs = printed.read_text(errors="replace").split(MARK)[1:]
    last = f"{page.name}: {todo[len(outputs) - 1].told}"
    if status is None:
        late = f"had not ended after {timeout:g} s: {last}\n{outputs[-1]}"
        warnings.warn(late, stacklevel=2)  # still shown if the test is begun again, and passes
        raise AssertionError(late)
    assert status == 0, f"{last}: exit {status}\n{outputs[-1]}"
    for step, output in zip(todo, outputs, strict=True):
        assert _matches(step.expected, output), f"{page.name}: {step.told}\n{output}\nis not as shown:\n{step.expected}"
    return outputs


def _type(script: str, place: Path, env: Mapping[str, str], out: IO[bytes], timeout: float) -> int | None:
    """The shell's exit status, or None if it was stopped because its time was over."""
    shell = ["bash", "-c", script]
    try:
        return subprocess.run(
            shell, cwd=place, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=timeout
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _environment(base: Mapping[str, str]) -> dict[str, str]:
    """The commands of this interpreter first, this copy of the package, and a plain terminal."""
    paths = [str(Path(sys.executable).parent), base.get("PATH", os.defpath)]
    sources = [str(ROOT / "src"), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
    return {
        **base,
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join(sources),
        "COLUMNS": "100",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


def _matches(expected: str, output: str) -> bool:
    """Whether the shown lines are in the output, in order; spaces and line breaks may differ."""
    pieces = [re.escape(" ".join(piece.split())) for piece in expected.split("...")]
    return re.search(".*".join(pieces), " ".join(output.split()), re.DOTALL) is not None
