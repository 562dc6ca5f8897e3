from pathlib import Path

from tests.server.recorded_runs import record

from secureafl.server.audit import client_records
from secureafl.server.recorded import RecordedRun


def test_reading_a_run_leaves_what_its_server_is_writing_alone(tmp_path: Path) -> None:
    record(tmp_path, 60).journal.close()
    draft = tmp_path / "snapshots" / "000000000099.tmp"
    draft.write_bytes(b"half a snapshot")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    run = RecordedRun.open(tmp_path)
    assert sum(found.arrivals for found in client_records(run)) == 60
    run.journal.close()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
