"""The federation of hospitals, at a small size, as a user runs it: NVFlare's simulator in processes of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


@pytest.mark.end_to_end
def test_hospitals_count_by_their_weight_and_the_wrong_one_hardly_at_all(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLE / "run.py"),
        "--two",
        "--updates",
        "150",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    share = {site: size / sum(found["patients"].values()) for site, size in found["patients"].items()}
    plain, ours = (found["results"][name] for name in ("weighted average", "SecureAFL"))
    assert ours["shares"]["site-12"] < 1.5 * share["site-12"] < plain["shares"]["site-12"]
    assert ours["shares"]["site-4"] < 0.8 * share["site-4"]  # once it is rejected, it has none; this is the mean
    assert ours["accuracy"] > 0.9
    assert (tmp_path / "influence.png").stat().st_size > 10_000
