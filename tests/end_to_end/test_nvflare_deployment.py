"""NVFlare with real processes on loopback: its simulator, and a deployment with the certificates that it provisions."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from nvflare.collab import CollabRecipe
from safetensors.numpy import load_file
from tests.end_to_end.child_processes import HOST, free_port
from tests.end_to_end.journals import arrivals, read_journal, refused, wait_for, wait_for_arrivals, wait_for_event
from tests.end_to_end.nvflare_processes import FAILED, SERVER, Deployment, simulate

from secureafl.engines.nvflare import AsyncClient, AsyncServer, federation_recipe
from secureafl.engines.signing import write_key_pair
from secureafl.server.record.address import Place
from secureafl.server.record.entries import Entry, Event
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.replay import compare

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.filterwarnings("ignore:ssl_context is deprecated:DeprecationWarning"),  # in NVFlare's admin connection
]

APP = Path(__file__).parent / "nvflare_app"
SETTINGS: dict[str, Any] = {"server_lr": 0.2, "snapshot_every": 5, "discovery_seconds": 0.5, "progress_seconds": 1.0}


def recipe(
    run_dir: Place, num_sites: int, train_config: dict[str, Any] | None = None, key: str = "", **settings: Any
) -> CollabRecipe:
    server = AsyncServer(
        "roles:initial_model",
        {**SETTINGS, "run_dir": str(run_dir), "stop_after_seconds": 300.0, **settings},
        evaluate="roles:evaluate",
        train_config=train_config,
    )
    client = AsyncClient("roles:train", key)
    return federation_recipe("roles", server, client, files=[APP / "roles.py"], min_clients=num_sites)


def mean_weight(run_dir: Path) -> float:
    return float(load_file(run_dir / "model.safetensors")["w"].mean())


def test_the_simulator_trains_despite_a_liar(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    port = free_port()
    settings = {**SETTINGS, "run_dir": str(run_dir), "stop_after_updates": 60, "metrics_port": port}
    sites = "honest-1,honest-2,honest-3,honest-4,poison-1"
    log = simulate(APP / "simulation.py", tmp_path / "simulator", [sites, json.dumps(settings)], timeout=180.0)
    assert "secureafl: 60 updates" in log
    assert f"metrics: http://{HOST}:{port}/metrics" in log
    assert {row.client for row in read_journal(run_dir) if row.event is Event.ARRIVAL} == set(sites.split(","))
    assert abs(mean_weight(run_dir) - 1.0) < 0.5


def test_the_simulators_sites_take_a_smaller_wire_up(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    settings = {**SETTINGS, "run_dir": str(run_dir), "stop_after_updates": 30, "wire": "int8"}
    simulate(APP / "simulation.py", tmp_path / "simulator", ["honest-1,honest-2", json.dumps(settings)], timeout=180.0)
    with RecordedRun.open(run_dir) as run:
        sizes = {len(row.payload or b"") for row in run.journal.entries(Event.ARRIVAL, payloads=True)}
        assert set(compare(run, run.machine()).distances) == {0.0}
    assert sizes == {16 + 4 * 4 + 1000 + 1}
    assert abs(mean_weight(run_dir) - 1.0) < 0.5


def test_a_liar_a_slow_a_killed_and_a_late_site(tmp_path: Path) -> None:
    """The killed one's ticket goes back; the others go on. The late one joins the next job, which resumes the run."""
    sites = ["honest-1", "honest-2", "honest-3", "honest-4", "poison-1", "slow-1"]
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "nvflare", [*sites, "late-1"]) as deployment:
        deployment.start_sites(*sites)
        delays = {"slow-delay": 5.0}
        first = deployment.submit(recipe(run_dir, 6, delays, ttl_seconds=15.0))
        for site in sites:
            wait_for_arrivals(run_dir, site, 1, timeout=120.0)
        deployment.kill("honest-1")
        wait_for_event(run_dir, "honest-1", Event.LEFT, timeout=60.0)
        so_far = len(arrivals(read_journal(run_dir), "honest-2"))
        wait_for_arrivals(run_dir, "honest-2", so_far + 5, timeout=60.0)
        deployment.abort(first, timeout=60.0)
        deployment.start_sites("late-1", "honest-1")
        second = deployment.submit(recipe(run_dir, 7, delays, resume=True))
        wait_for_arrivals(run_dir, "late-1", 3, timeout=120.0)
        so_far = len(arrivals(read_journal(run_dir), "honest-1"))
        wait_for_arrivals(run_dir, "honest-1", so_far + 3, timeout=60.0)
        deployment.abort(second, timeout=60.0)
    rows = read_journal(run_dir)
    assert len(arrivals(rows, "slow-1")) < len(arrivals(rows, "honest-2")), "the slow one did not hold up the others"
    assert abs(mean_weight(run_dir) - 1.0) < 0.5, "one liar pulls towards -9 in vain"


def test_a_training_process_that_dies_ends_the_job_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """In a proof of concept. The site's parent process lives and reports the death, and NVFlare gives the job up."""
    sites = ["honest-1", "honest-2", "raise-1", "garbage-1"]
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "nvflare", sites, poc=True) as deployment:
        deployment.start_sites(*sites)
        first = deployment.submit(recipe(run_dir, 4))
        wait_for_arrivals(run_dir, "honest-1", 5, timeout=120.0)
        wait_for_event(run_dir, "raise-1", Event.CLIENT_ERROR, timeout=30.0)
        [victim] = deployment.job_processes("honest-2")
        os.kill(victim, signal.SIGKILL)
        deployment.wait(first, timeout=60.0, expect=FAILED)
        so_far = len(versions(read_journal(run_dir)))
        second = deployment.submit(recipe(run_dir, 4, resume=True, stop_after_updates=so_far + 20))
        deployment.wait(second, timeout=120.0)
    rows = read_journal(run_dir)
    assert versions(rows) == list(range(so_far + 20))
    assert {row.reason for row in refused(rows, "garbage-1")} == {"wrong-names"}


def test_a_run_ends_although_a_site_still_trains(tmp_path: Path) -> None:
    sites = ["honest-1", "slow-1"]
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "nvflare", sites) as deployment:
        deployment.start_sites(*sites)
        deployment.submit(recipe(run_dir, 2, {"slow-delay": 600.0}, stop_after_updates=20))
        wait_for_arrivals(run_dir, "honest-1", 20, timeout=120.0)
        deployment.wait_until_idle(timeout=60.0)
    assert len(versions(read_journal(run_dir))) == 20
    assert (run_dir / "model.safetensors").exists()


def test_a_killed_server_goes_on_from_its_journal(tmp_path: Path) -> None:
    sites = ["honest-1", "honest-2", "honest-3"]
    run_dir = tmp_path / "run"
    with Deployment(tmp_path / "nvflare", sites) as deployment:
        deployment.start_sites(*sites)
        deployment.submit(recipe(run_dir, 3))
        wait_for(run_dir, lambda rows: len(versions(rows)) >= 20, timeout=120.0)
        deployment.kill(SERVER)
        before = versions(read_journal(run_dir))
        deployment.start_server()
        job_id = deployment.submit(recipe(run_dir, 3, resume=True, stop_after_updates=len(before) + 20))
        deployment.wait(job_id, timeout=180.0)
    after = versions(read_journal(run_dir))
    assert after == list(range(len(before) + 20)), "no arrival was lost, none was judged twice"
    assert abs(mean_weight(run_dir) - 1.0) < 0.2


def versions(rows: list[Entry]) -> list[int]:
    return [row.version for row in rows if row.event is Event.ARRIVAL]


def test_a_forged_answer_is_taken_without_signing_and_refused_with_it(tmp_path: Path) -> None:
    """Certificates are NVFlare's own. The forger answers the victim's request over its own connection."""
    sites = ["victim-1", "forger-1"]
    outcome: dict[str, list[Entry]] = {}
    with Deployment(tmp_path / "nvflare", sites) as deployment:
        deployment.start_sites(*sites)
        keys_file = tmp_path / "keys.toml"
        public = {site: write_key_pair(deployment.kits / site / "local" / "signing.pem") for site in sites}
        keys_file.write_text("".join(f'{site} = "{key}"\n' for site, key in public.items()))
        for name, signing in {
            "unsigned": {},
            "signed": {"key": "local/signing.pem", "keys_file": str(keys_file)},
        }.items():
            run_dir, leak = tmp_path / name, tmp_path / f"{name}.json"
            job = recipe(run_dir, 2, {"leak": str(leak)}, defense="asyncsgd", stop_after_updates=1, **signing)
            deployment.wait(deployment.submit(job), timeout=150.0)
            outcome[name] = read_journal(run_dir)
    [taken] = arrivals(outcome["unsigned"], "victim-1")
    assert taken.accepted, "without signing, the server takes the forger's word"
    assert taken.evidence["norm"] == pytest.approx(1000.0 * 1000**0.5), "it was the forger's content"
    assert {row.reason for row in refused(outcome["signed"], "victim-1")} == {"bad-signature"}
    assert all(row.evidence["norm"] < 1000.0 for row in arrivals(outcome["signed"], "victim-1")), "its own content"
