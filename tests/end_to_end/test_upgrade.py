"""What an operator does with a run that an earlier version left, by the commands as processes; on the golden runs."""

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.end_to_end.browser import CLI, dashboard
from tests.golden.recorded import BEGUN, ENDED, RUNS, Recorded
from tests.golden.scenario import rounding

from secureafl.server.record.address import RunUrl

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
OF_0_1 = tuple(recorded for recorded in RUNS if recorded.version == "0.1.0")


def call(*words: str, fails: bool = False) -> str:
    """What a command prints; with `fails`, the one line by which it says why it does nothing."""
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return " ".join((done.stderr if fails else done.stdout).split())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copied(recorded: Recorded, folder: Path) -> Path:
    return Path(shutil.copytree(recorded.folder, folder / "run"))


@pytest.mark.parametrize("recorded", RUNS, ids=lambda recorded: recorded.name)
def test_every_command_that_reads_reads_it_and_changes_nothing(recorded: Recorded, tmp_path: Path) -> None:
    run = copied(recorded, tmp_path)
    before, place = contents(run), str(run)
    said = json.loads(recorded.expected.read_text())["audit"]
    found = {client["client"]: client for client in json.loads(call("audit", place, "--json"))}
    assert {name: client["arrivals"] for name, client in found.items()} == {
        name: client["arrivals"] for name, client in said.items()
    }
    assert f"Arrival {BEGUN - 1}: client client-" in call("audit", place, "--update", str(BEGUN - 1))
    assert call("audit", place, "--client", "client-0").startswith("client")
    verified = call("verify", place)
    assert "is whole: " in verified
    assert ("no chain: written by 0.1" in verified) is (recorded in OF_0_1)
    assert f"model version {BEGUN}" in call("watch", place, "--once").replace("│", "")
    if rounding() == json.loads(recorded.expected.read_text())["rounding"]:
        assert "The two models ended 0 apart; at most 0." in call("replay", place)
    assert "secureafl then, asyncsgd now" in call("replay", place, "--defense", "asyncsgd")
    with dashboard(run, tmp_path / "dashboard.txt") as address:
        summary = json.loads(urllib.request.urlopen(f"{address}api/summary", timeout=60).read())
        verdict = json.loads(urllib.request.urlopen(f"{address}api/verdict?update=7", timeout=60).read())
    assert urlsplit(address).hostname == "127.0.0.1"
    assert str(BEGUN) in json.dumps(summary)
    assert "client-" in json.dumps(verdict)
    assert contents(run) == before


@pytest.mark.parametrize("recorded", RUNS, ids=lambda recorded: recorded.name)
def test_a_client_is_taken_out_of_it_and_what_is_left_is_a_run_of_this_version(
    recorded: Recorded, tmp_path: Path
) -> None:
    run, repaired = copied(recorded, tmp_path), tmp_path / "repaired"
    assert "The repaired run is in" in call("eject", str(run), "--client", "client-0", "--out", str(repaired))
    assert "head " in call("verify", str(repaired))
    assert "client-0" not in {client["client"] for client in json.loads(call("audit", str(repaired), "--json"))}


@pytest.mark.parametrize("recorded", RUNS, ids=lambda recorded: recorded.name)
def test_a_server_goes_on_with_it_and_it_can_be_moved_to_a_database(
    recorded: Recorded, tmp_path: Path, run_url: RunUrl
) -> None:
    run, place = copied(recorded, tmp_path), str(run_url)
    if recorded in OF_0_1:
        assert "resume it once to give it one" in call("copy", str(run), place, fails=True)
    assert f"goes on from version {BEGUN} of the model" in call("resume", str(run))
    words = [sys.executable, "-m", "tests.end_to_end.upgraded_server", recorded.name, str(run)]
    server = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert server.returncode == 0, server.stderr
    then = json.loads(recorded.expected.read_text())
    assert json.loads(server.stdout) == pytest.approx(then["model"], rel=1e-4, abs=1e-5)
    assert "head " in call("verify", str(run))
    here = json.loads(call("audit", str(run), "--json"))
    assert sum(client["arrivals"] for client in here) == ENDED
    call("copy", str(run), place)
    assert "is whole: " in call("verify", place)
    assert json.loads(call("audit", place, "--json")) == here
