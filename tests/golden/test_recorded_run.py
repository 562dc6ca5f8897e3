"""A run that an earlier version left behind is resumed bit for bit, and audited to the same numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.recorded import BEGUN, ENDED, HERE, RUNS, Recorded, fingerprint
from tests.golden.scenario import digest, rounding

import secureafl
from secureafl import Machine
from secureafl.defenses.secureafl.formats import renamed_key
from secureafl.errors import StoreError
from secureafl.server.record.entries import RENAMED_REASONS
from secureafl.server.record.run import Origin, Run
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun


def expected(recorded: Recorded) -> dict[str, Any]:
    return dict(json.loads(recorded.expected.read_text()))


@pytest.fixture(params=RUNS, ids=lambda recorded: recorded.name)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    found: Recorded = request.param
    return found


@pytest.fixture
def run_dir(recorded: Recorded, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded.folder, tmp_path / "run"))


def test_every_run_is_listed_and_this_version_has_one() -> None:
    assert {path.parent.name for path in HERE.glob("*/run.db")} == {recorded.name for recorded in RUNS}
    assert secureafl.__version__ in {recorded.version for recorded in RUNS}


def test_it_is_resumed_and_goes_on_as_its_own_version_did(recorded: Recorded, run_dir: Path) -> None:
    then = expected(recorded)
    run = recorded.resume(run_dir)
    assert run.machine.model.version == BEGUN
    same_rounding = rounding() == then["rounding"]
    if same_rounding:
        assert fingerprint(run.machine) == then["at_resume"]
    recorded.go_on(run, ENDED)
    assert run.machine.model.params.tolist() == pytest.approx(then["model"], rel=1e-4, abs=1e-5)
    if same_rounding:
        assert run.machine.model.params.tolist() == then["model"]
        assert fingerprint(run.machine) == then["at_end"]
        state = {key: digest(value) for key, value in run.machine.defense.state_dict().items()}
        saved = {today(key, recorded): value for key, value in then["defense"].items()}
        assert state == {key: value for key, value in saved.items() if key in state}
    run.close()


def today(key: str, recorded: Recorded) -> str:
    """The present name of what the run's version saved."""
    return renamed_key(key) if recorded.version == "0.1.0" else key


def test_its_audit_says_what_it_said(recorded: Recorded, run_dir: Path) -> None:
    found = {record.client: record.summary() for record in client_records(RecordedRun.open(run_dir))}
    text = json.dumps(expected(recorded)["audit"])
    for old, new in RENAMED_REASONS.items():
        text = text.replace(old, new)
    said = json.loads(text)
    assert found.keys() == said.keys()
    for client, summary in json.loads(json.dumps(found)).items():
        assert {key: summary[key] for key in said[client]} == said[client]  # later versions say more


def test_a_resume_under_other_settings_leaves_it_as_it_was(recorded: Recorded, run_dir: Path) -> None:
    before = contents(run_dir)
    other = Recorded("other", "any", {**recorded.own, "lead": 0.1}, recorded.wire)
    with pytest.raises(StoreError, match=r"was started with defense_settings\.lead = 0\.3, not 0\.1"):
        other.resume(run_dir)
    assert contents(run_dir) == before


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock, which says who had the folder last."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_model_that_0_1_judged_otherwise_is_named(tmp_path: Path) -> None:
    recorded = RUNS[0]
    run_dir = Path(shutil.copytree(recorded.folder, tmp_path / "run"))
    origin, chosen = Origin.on_record(run_dir), recorded.settings(run_dir)
    machine = Machine(chosen.make_defense(19), np.zeros(19, np.float32), chosen.machine(count_refused=True))
    with pytest.raises(StoreError, match=r"another first model; 0\.1 judged integer arrays too"):
        Run.resume(machine, chosen, facts={**chosen.facts(), "seed": origin.seed})
