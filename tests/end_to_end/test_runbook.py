"""The runbook's commands, as they stand on the page, against a real PostgreSQL and real processes."""

import os
import uuid
from pathlib import Path

import pytest
from tests.docs.pages import follow
from tests.end_to_end.child_processes import end_processes
from tests.postgres import USER, PostgresServer, program

from secureafl.server.record.address import store_of
from secureafl.server.record.entries import Event

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "runbook.md"

MARKER = "RUNBOOK_DRILL"
PATIENCE = 1800.0

pytestmark = pytest.mark.end_to_end


def test_every_command_of_the_drill_does_what_the_runbook_says(tmp_path: Path, postgres: PostgresServer) -> None:
    found = program("pg_dump")
    if found is None:
        pytest.skip("PostgreSQL's pg_dump is not installed")
    database = f"postgresql://{USER}@127.0.0.1:{postgres.port}/runs"
    path = f"{Path(found).parent}{os.pathsep}{os.environ['PATH']}"
    marker = uuid.uuid4().hex
    env = {**os.environ, "RUN": f"{database}/drill", "DATABASE": database, "PATH": path, MARKER: marker}
    try:
        follow(PAGE, tmp_path, env, timeout=PATIENCE)
    finally:
        end_processes(f"{MARKER}={marker}")
    for place in (postgres.url("drill"), tmp_path / "here" / "copied"):
        journal = store_of(place).read()
        versions = [entry.version for entry in journal.entries(Event.ARRIVAL)]
        resumed = sum(1 for _ in journal.entries(Event.RESUMED))
        journal.close()
        assert versions == list(range(len(versions))), "each arrival once, whoever led"
        assert resumed >= 2
