"""The federation of hospitals, at a small size, as a user runs it: NVFlare's simulator in processes of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
PLAIN, OURS = "weighted average", "SecureAFL"


def run(out: Path, *jobs: str) -> tuple[dict[str, float], dict[str, Any]]:
    """Each hospital's share of all patients, and what each job came to."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--only", *jobs, "--updates", "150", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "found.json").read_text())
    total = sum(found["patients"].values())
    return {site: size / total for site, size in found["patients"].items()}, found["results"]


@pytest.mark.end_to_end
def test_hospitals_count_by_their_weight_and_the_wrong_one_hardly_at_all(tmp_path: Path) -> None:
    share, results = run(tmp_path, OURS)
    ours = results[OURS]
    assert ours["shares"]["site-12"] < 1.5 * share["site-12"]
    assert ours["shares"]["site-4"] < 0.8 * share["site-4"]  # once it is rejected, it has none; this is the mean
    assert ours["accuracy"] > 0.9
    assert (tmp_path / "influence.png").stat().st_size > 10_000


@pytest.mark.campaign
def test_under_a_weighted_average_the_smallest_hospital_counts_for_more_than_it_has(tmp_path: Path) -> None:
    share, results = run(tmp_path, PLAIN, OURS)
    ours, plain = (results[name]["shares"]["site-12"] for name in (OURS, PLAIN))
    assert ours < 1.5 * share["site-12"] < plain
