"""A real deployment whose server is scraped over HTTP while nodes answer: what it says is what its journal says."""

import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.end_to_end.child_processes import HOST, free_port
from tests.end_to_end.flower_processes import OF_THE_TEST_APP, Config, Deployment
from tests.end_to_end.journals import read_journal
from tests.scrapes import scrape

from secureafl.server.live.telemetry import verdict_of
from secureafl.server.record.entries import Entry, Event

pytestmark = pytest.mark.end_to_end

APP = Path(__file__).parent / "flower_app"


def test_counters_are_the_journals_rows_while_updates_arrive(tmp_path: Path) -> None:
    run_dir, port = tmp_path / "run", free_port()
    url = f"http://{HOST}:{port}/metrics"
    roles: dict[int, Config] = {
        0: {"role": "honest"},
        1: {"role": "honest"},
        2: {"role": "garbage"},
        3: {"role": "raise"},
    }
    scrapes: list[dict[str, float]] = []
    with Deployment(tmp_path / "flower", warm=OF_THE_TEST_APP) as deployment:
        deployment.start_nodes(roles)
        config: Config = {
            "secureafl.run-dir": str(run_dir),
            "secureafl.min-nodes": 4,
            "secureafl.metrics-port": port,
            "secureafl.stop-after-seconds": 300.0,
        }
        run_id = deployment.submit(APP, config)
        deadline = time.monotonic() + 180.0
        while not scrapes or not enough(scrapes[-1]):
            assert time.monotonic() < deadline, scrapes[-1:]
            if deployment.server_process() is not None:
                with contextlib.suppress(OSError):  # not listening yet
                    scrapes.append(scrape(url))
            time.sleep(0.5)
        deployment.end_server()
        log = deployment.wait(run_id, timeout=60.0).log_text()
    assert f"metrics: {url}" in log
    rows = read_journal(run_dir)
    versions = [found["secureafl_model_version"] for found in scrapes]
    assert versions == sorted(versions)
    assert len(set(versions)) > 2, "scraped while updates arrived"
    for found in scrapes:
        counters = {name: value for name, value in found.items() if name.partition("{")[0] in COUNTERS}
        so_far = rows[: int(sum(counters.values()))]
        assert {name: value for name, value in counters.items() if value} == Counter(map(counter_of, so_far))
        assert found["secureafl_staleness_versions_count"] == found["secureafl_step_seconds_count"]
        assert found["secureafl_staleness_versions_count"] == found["secureafl_model_version"]
    assert (
        found["secureafl_clients_known"]
        == found["secureafl_clients_known"]
        == found["secureafl_clients_present"]
        == 4.0
    )
    assert found["secureafl_evaluation{metric=error}"] >= 0.0


COUNTERS = {"secureafl_arrivals_total", "secureafl_events_total", "secureafl_models_sent_total"}


def enough(found: dict[str, float]) -> bool:
    """Some of each kind arrived."""
    return (
        found["secureafl_model_version"] >= 6
        and found["secureafl_arrivals_total{reason=malformed}{verdict=refused}"] >= 1
        and found["secureafl_events_total{event=client-error}"] >= 1
        and found["secureafl_clients_known"] == found["secureafl_clients_present"] == 4
        and "secureafl_evaluation{metric=error}" in found
    )


def counter_of(row: Entry) -> str:
    """The counter that this row of the journal is counted by."""
    if row.event in {Event.ARRIVAL, Event.REFUSED}:
        verdict = verdict_of(row.reason, bool(row.accepted))
        return f"secureafl_arrivals_total{{reason={row.reason}}}{{verdict={verdict}}}"
    if row.event is Event.ISSUED:
        return "secureafl_models_sent_total"
    return f"secureafl_events_total{{event={row.event}}}"
