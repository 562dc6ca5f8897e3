import math
import sqlite3
from pathlib import Path

from secureafl.server.audit import AuditRow, AuditTrail, Event

ROW = AuditRow(1.5, 3, "hospital", Event.ARRIVAL, "accepted", True, {"norm": 2.0, "threshold": math.inf})


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "run.db")
    trail.write(ROW)
    trail.write(AuditRow(2.0, 4, "hospital", Event.LEFT, "node gone"))
    trail.close()
    again = AuditTrail(tmp_path / "run.db")
    assert list(again.rows()) == [ROW, AuditRow(2.0, 4, "hospital", Event.LEFT, "node gone")]
    assert list(again.rows(Event.LEFT)) == [AuditRow(2.0, 4, "hospital", Event.LEFT, "node gone")]
    again.close()


def test_anyone_can_read_the_database(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "run.db")
    trail.write(ROW)
    with sqlite3.connect(tmp_path / "run.db") as reader:
        found = reader.execute("SELECT client, accepted, json_extract(evidence, '$.norm') FROM audit").fetchall()
    reader.close()
    trail.close()
    assert found == [("hospital", 1, 2.0)]
