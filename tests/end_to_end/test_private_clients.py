"""The private client of the how-to, in a Flower app as `secureafl new` makes it: its account reaches the audit."""

import json
from pathlib import Path

import pytest
from tests.docs.pages import save_files
from tests.end_to_end.flower_processes import Simulation
from tests.end_to_end.journals import read_journal
from tests.end_to_end.test_new_app import accuracy, secureafl

from secureafl.server.record.entries import Event

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-privately.md"
NUM_CLIENTS = 10


def test_private_clients_learn_and_what_they_gave_away_is_on_record(tmp_path: Path) -> None:
    secureafl("new", "my-app", cwd=tmp_path)
    app, ledgers = tmp_path / "my-app", tmp_path / "ledgers"
    ledgers.mkdir()
    save_files(PAGE, app / "my_app")
    client_app = app / "my_app" / "client_app.py"
    client_app.write_text(client_app.read_text().replace("/var/lib/my-app", str(ledgers)))
    with Simulation(tmp_path / "flower") as engine:
        run = engine.run(app, {"secureafl.stop-after-updates": 60}, num_supernodes=NUM_CLIENTS, timeout=300.0)
    assert accuracy(run.log_text()) > 0.7  # it began at a third

    rows = read_journal(app / "runs" / "first")
    arrivals = [row for row in rows if row.event is Event.ARRIVAL]
    for client in {row.client for row in arrivals}:
        said = [row.evidence["epsilon"] for row in rows if row.client == client and row.event is Event.REPORTED]
        assert len(said) >= sum(row.client == client for row in arrivals)
        assert said == sorted(set(said)), "every training gives more away"
    told = json.loads(secureafl("audit", "runs/first", "--json", cwd=app))
    assert all(0.0 < record["epsilon"] < 50.0 and record["delta"] == 1e-4 for record in told)
    assert len(list(ledgers.iterdir())) == NUM_CLIENTS
    first = secureafl("audit", "runs/first", "--client", told[0]["client"], cwd=app)
    assert "in its own words it has given away epsilon = " in first
    assert "is whole" in secureafl("verify", "runs/first", cwd=app)
    assert "reported" not in secureafl("audit", "runs/first", cwd=app), "what is no trouble is not listed as one"
