"""A run that 0.1.0 left behind is resumed bit for bit, and audited to the same numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.golden import recorded
from tests.golden.scenario import digest, rounding

from secureafl.defenses.secureafl.formats import renamed_key
from secureafl.server.record.entries import RENAMED_REASONS
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun

EXPECTED: dict[str, Any] = json.loads(recorded.EXPECTED.read_text())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded.FOLDER, tmp_path / "run"))


def test_it_is_resumed_and_goes_on_as_its_own_version_did(run_dir: Path) -> None:
    run = recorded.resume(run_dir)
    assert run.machine.model.version == recorded.BEGUN
    same_rounding = rounding() == EXPECTED["rounding"]
    if same_rounding:
        assert recorded.fingerprint(run.machine) == EXPECTED["at_resume"]
    recorded.go_on(run, recorded.ENDED)
    assert run.machine.model.params.tolist() == pytest.approx(EXPECTED["model"], rel=1e-4, abs=1e-5)
    if same_rounding:
        assert recorded.fingerprint(run.machine) == EXPECTED["at_end"]
        state = {key: digest(value) for key, value in run.machine.defense.state_dict().items()}
        then = {renamed_key(key): value for key, value in EXPECTED["defense"].items()}
        assert state == {key: value for key, value in then.items() if key in state}
    run.close()


def test_its_audit_says_what_it_said(run_dir: Path) -> None:
    found = {record.client: record.summary() for record in client_records(RecordedRun.open(run_dir))}
    text = json.dumps(EXPECTED["audit"])
    for old, new in RENAMED_REASONS.items():
        text = text.replace(old, new)
    said = json.loads(text)
    assert found.keys() == said.keys()
    for client, summary in json.loads(json.dumps(found)).items():
        assert {key: summary[key] for key in said[client]} == said[client]  # later versions say more
