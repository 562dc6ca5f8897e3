from pathlib import Path

import pytest
from tests.server.recorded_runs import record

from secureafl.errors import StoreError
from secureafl.server.review.audit import client_records
from secureafl.server.review.opened import RecordedRun


def test_reading_a_run_leaves_what_its_server_is_writing_alone(tmp_path: Path) -> None:
    record(tmp_path, 60).journal.close()
    draft = tmp_path / "snapshots" / ".000000000099.safetensors.1"
    draft.write_bytes(b"half a snapshot")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run = RecordedRun.open(tmp_path)
    assert sum(found.arrivals for found in client_records(run)) == 60
    run.journal.close()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_damaged_first_model_is_named(tmp_path: Path) -> None:
    record(tmp_path, 10).journal.close()
    first = tmp_path / "snapshots" / "first.safetensors"
    content = bytearray(first.read_bytes())
    content[-1] ^= 1
    first.write_bytes(content)
    with pytest.raises(StoreError, match="the run's first model is damaged"):
        RecordedRun.open(tmp_path)
