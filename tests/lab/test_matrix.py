"""Every attack against every defense on real Fashion-MNIST, briefly: nothing breaks, everything is measured."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from secureafl.defenses import DEFENSES
from secureafl.lab.attacks import ATTACKS
from secureafl.lab.sweeps.recipes import RECIPES
from secureafl.lab.sweeps.sweep import read_sweep

pytestmark = pytest.mark.slow


def test_all_attacks_run_against_all_defenses(tmp_path: Path) -> None:
    cells = RECIPES["matrix"].cells(rounds=30, evaluate_every=30, num_test=200)
    pairs = {(cell.defense, cell.attack) for cell in cells}
    assert pairs == {(defense, attack) for defense in DEFENSES for attack in ["none", *ATTACKS]}
    command = [sys.executable, "-c", "from secureafl.cli import app; app()", "lab", "sweep", "matrix"]
    command += [
        "--jobs",
        str(min(4, os.cpu_count() or 1)),
        "--rounds",
        "30",
        "--set",
        "evaluate_every=30",
        "--set",
        "num_test=200",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_sweep(tmp_path, "matrix")
    assert len(results) == len(cells)
    paired = [result for result in results if result["settings"]["attack"] != "flood"]  # which arrives more often
    assert len({result["digests"]["arrivals"] for result in paired}) == 1
    for result in results:
        name = result["settings"]["attack"]
        assert 0.0 <= float(result["final"]["ter"]) <= 1.0
        assert ("asr" in result["final"]) == (name != "none" and ATTACKS[name].is_backdoor)
        assert not math.isnan(float(result["detection"]["honest_accepted"]))
