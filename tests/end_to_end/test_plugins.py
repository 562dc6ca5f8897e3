"""A defense, an attack and a partition of one's own, in an empty folder, with the real command."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.tiny import write_tiny_fashion

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("secureafl")
MINE = '''
"""Mine: rejects what is longer than a limit."""

import numpy as np

from secureafl import Verdict
from secureafl.defenses.base import norm
from secureafl.lab.attacks.attack import Stateless
from secureafl.settings import Settings
from secureafl.types import refuse


class MineSettings(Settings):
    limit: float = 20.0


class Mine:
    def __init__(self, dim, settings=MineSettings()):
        self.dim, self.settings = dim, settings

    def step(self, update, model):
        if fault := update.fault(self.dim):
            return refuse(fault)
        if norm(update.delta) > self.settings.limit:
            return refuse("beyond-my-limit")
        return Verdict(True, "accepted", update.delta)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Push(Stateless):
    def update(self, view):
        return np.asarray(view.gradient * np.float32(-1000.0))


def by_label(labels, num_clients, rng):
    return np.array_split(np.argsort(labels, kind="stable"), num_clients)
'''
SWEEP = """
[base]
architecture = "small-cnn"
rounds = 30
num_clients = 8
batch_size = 8

[grid]
defense = ["mine:Mine", "asyncsgd"]
attack = ["none", "mine:Push"]
"""

Type = Callable[[str], str]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    place = tmp_path / "here"
    place.mkdir()
    (place / "mine.py").write_text(MINE)
    (place / "sweep.toml").write_text(SWEEP)
    return place


@pytest.fixture
def type_in(here: Path, tmp_path: Path) -> Type:
    """Runs a command in the folder; what it printed."""
    source = write_tiny_fashion(tmp_path / "data")
    env = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SECUREAFL_DATA": str(source),
        "COLUMNS": "120",
    }

    def run(words: str) -> str:
        done = subprocess.run([COMMAND, *words.split()], cwd=here, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_run_of_ones_own_is_recorded_audited_and_replayed(type_in: Type, here: Path) -> None:
    assert "longer than a limit" in type_in("defenses mine:Mine")
    type_in(
        "lab run --defense mine:Mine --attack mine:Push --partition mine:by_label --rounds 60 --record runs/x"
        " --set architecture=small-cnn --set num_clients=8 --set batch_size=8 --set defense_settings.limit=30"
    )
    [path] = (here / "results" / "lab" / "cells").glob("*/result.json")
    result = json.loads(path.read_text())
    assert [result["settings"][key] for key in ("defense", "attack", "partition")] == [
        *("mine:Mine", "mine:Push", "mine:by_label")
    ]
    assert set(result["code"]) == {"mine:Mine", "mine:Push", "mine:by_label"}
    assert result["detection"]["recall"] == 1.0
    assert "beyond-my-limit" in type_in("audit runs/x")
    replayed = type_in("replay runs/x")
    assert "mine:Mine then, mine:Mine now" in replayed
    assert "The two models ended 0 apart" in replayed
    assert "beyond-my-limit then, accepted now" in type_in("replay runs/x --set limit=1e9")
    assert "mine:Mine then, asyncsgd now" in type_in("replay runs/x --defense asyncsgd")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_grid_of_ones_own_compares_it_with_ours(jobs: int, type_in: Type, here: Path) -> None:
    table = type_in(f"lab sweep sweep.toml --jobs {jobs}")
    assert "mine:Mine" in table
    assert "AsyncSGD" in table
    results = [json.loads(path.read_text()) for path in here.glob("results/lab/cells/*/result.json")]
    assert {(one["settings"]["defense"], one["settings"]["attack"]) for one in results} == {
        *(("mine:Mine", "none"), ("mine:Mine", "mine:Push"), ("asyncsgd", "none"), ("asyncsgd", "mine:Push"))
    }
    (here / "mine.py").rename(here / "gone.py")
    assert "index.html" in type_in("lab report sweep.toml")
    cells = (here / "results" / "lab" / "sweep-report" / "cells.md").read_text()
    assert cells.count("mine:Push") >= 2
