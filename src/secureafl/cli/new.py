"""`secureafl new`: an app that runs as it is, attack included, to be turned into one's own."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from secureafl.errors import SettingsError

SUFFIX = ".in"
FOLDER = "package"
"""What the app's own package is called among the templates."""
FEDERATION = '--federation-config "num-supernodes=10 client-resources-num-cpus=1"'


class Engine(StrEnum):
    """What carries the models."""

    FLOWER = "flower"
    NVFLARE = "nvflare"


SIMULATION = 'pip install "flwr[simulation]"'
"""What brings Ray, without which Flower simulates nothing."""


def next_commands(engine: Engine) -> Iterator[str]:
    """What to type after `cd APP`."""
    if engine is Engine.FLOWER and importlib.util.find_spec("ray") is None:
        yield SIMULATION
    yield "secureafl check ."
    yield f"flwr run . --stream {FEDERATION}" if engine is Engine.FLOWER else "python job.py"


def create_app(folder: Path, engine: Engine) -> list[Path]:
    """Write a new app into `folder`, which does not exist yet or is empty; returns its files."""
    name = folder.absolute().name
    package = re.sub(r"[-. ]", "_", name).lower()
    if not package.isidentifier() or keyword.iskeyword(package) or package in ("secureafl", "flwr", "nvflare"):
        raise SettingsError(f"{name!r} is no name for an app: begin with a letter, as in my-app")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} exists already: name a new folder")
    values = {
        "name": package.replace("_", "-"),
        "package": package,
        "run_dir": json.dumps(str(folder.absolute() / "runs" / "first"), ensure_ascii=False),
    }
    written = []
    for inside, template in _templates(engine):
        path = folder / inside.replace(f"{FOLDER}/", f"{package}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = template.read_text(encoding="utf-8")
        path.write_text(re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text), encoding="utf-8")
        written.append(path)
    marker = folder / package / "__init__.py"
    marker.write_text('"""A federation in which some clients are malicious."""\n', encoding="utf-8")
    return sorted([*written, marker])


def _templates(engine: Engine) -> Iterator[tuple[str, Traversable]]:
    """The place of each file in the app, and its template."""
    root = files("secureafl.cli") / "templates"
    yield f"{FOLDER}/task.py", root / f"task.py{SUFFIX}"
    for entry in (root / engine).iterdir():
        if entry.name == FOLDER:
            yield from ((f"{FOLDER}/{inner.name.removesuffix(SUFFIX)}", inner) for inner in entry.iterdir())
        else:
            yield entry.name.removesuffix(SUFFIX), entry
