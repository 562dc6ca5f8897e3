"""`secureafl new`, and what it makes, run for real: attacked, killed, resumed, looked at; on both engines."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.end_to_end.child_processes import ProcessFailedError, command_line
from tests.end_to_end.flower_processes import Simulation
from tests.end_to_end.journals import read_journal, wait_for
from tests.end_to_end.nvflare_processes import simulate

from secureafl.server.record.entries import Entry, Event

pytestmark = pytest.mark.end_to_end

COMMAND = Path(sys.executable).with_name("secureafl")


def secureafl(*arguments: object, cwd: Path) -> str:
    done = subprocess.run([COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def count_arrivals(rows: list[Entry]) -> int:
    return sum(row.event is Event.ARRIVAL for row in rows)


def accuracy(log: str) -> float:
    return float(re.findall(r"accuracy ([0-9.]+|nan) \(version", log)[-1])


def kill_server(engine: Simulation) -> None:
    """kill -9 to the process that holds the server and its simulated nodes, and to Ray's below it: what is left of Ray
    ends by itself, but only after a while, and then the next run starts beside it."""
    commands = {pid: command_line(pid) for pid in engine.processes()}
    for pid, command in commands.items():
        if "flwr-simulation" in command or "ray" in command.split(" ")[0]:
            with contextlib.suppress(ProcessLookupError):  # a worker of Ray that ended with its parent
                os.kill(pid, signal.SIGKILL)


def test_a_new_flower_app_is_attacked_killed_and_resumed_in_both_ways(tmp_path: Path) -> None:
    secureafl("new", "my-app", cwd=tmp_path)
    app = tmp_path / "my-app"
    assert "Nothing stands in its way." in secureafl("check", ".", cwd=app)
    run_dir = app / "runs" / "first"
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["secureafl"][
        "run-dir"
    ] == str(run_dir)
    with Simulation(tmp_path / "flower") as engine:
        engine.submit(app, {"secureafl.stop-after-updates": 10**6}, "--federation-config", "num-supernodes=10")
        wait_for(run_dir, lambda rows: count_arrivals(rows) >= 40, 120.0)
        kill_server(engine)
        wait_for(run_dir, lambda rows: True, 10.0)
        left = count_arrivals(read_journal(run_dir))
        config = {"secureafl.resume": True, "secureafl.stop-after-updates": left + 100}
        run = engine.run(app, config, num_supernodes=10, timeout=180.0)
        rows = read_journal(run_dir)
        assert [row.event for row in rows].count(Event.RESUMED) == 1
        assert count_arrivals(rows) == left + 100
        assert accuracy(run.log_text()) > 0.8

        # An app that does not list the key: Flower refuses it, and the operator's wish is kept with the run.
        project = app / "pyproject.toml"
        project.write_text(re.sub(r"\nresume = .*", "", project.read_text()))
        with pytest.raises(ProcessFailedError):
            engine.submit(app, {"secureafl.resume": True})
        assert f"goes on from version {left + 100} of the model" in secureafl("resume", "runs/first", cwd=app)
        config = {"secureafl.stop-after-updates": left + 150}
        engine.run(app, config, num_supernodes=10, timeout=180.0)
        rows = read_journal(run_dir)
        assert [row.event for row in rows].count(Event.RESUMED) == 2
        assert count_arrivals(rows) == left + 150
        assert "is whole" in secureafl("verify", "runs/first", cwd=app)

        # Once more without a wish: the run on record is safe, and one line says what to do.
        run = engine.run(app, config, num_supernodes=10, timeout=180.0, expect="finished:failed")
        said = run.log_text()
        assert f"{run_dir} already holds a run: resume it" in said
        assert "Traceback" not in said
        assert "Exit Code" not in said


def test_a_misspelt_setting_is_one_line_in_flowers_log(tmp_path: Path) -> None:
    secureafl("new", "my-app", cwd=tmp_path)
    project = tmp_path / "my-app" / "pyproject.toml"
    project.write_text(project.read_text().replace("stop-after-updates", "stop-after-update"))
    with Simulation(tmp_path / "flower") as engine:
        run = engine.run(tmp_path / "my-app", {}, num_supernodes=10, timeout=180.0, expect="finished:failed")
    said = run.log_text()
    wanted = "[tool.flwr.app.config.secureafl] has no setting 'stop-after-update'; did you mean 'stop-after-updates'?"
    assert next(line for line in said.splitlines() if "stop-after-update" in line).endswith(wanted)
    assert said.count("stop-after-update'") == 1
    assert "Traceback" not in said
    assert "Exit Code" not in said


def test_a_new_nvflare_job_runs_and_is_resumed(tmp_path: Path) -> None:
    secureafl("new", "my-job", "--engine", "nvflare", cwd=tmp_path)
    app = tmp_path / "my-job"
    assert "Nothing stands in its way." in secureafl("check", ".", cwd=app)
    job = app / "job.py"
    job.write_text(job.read_text().replace('"stop_after_updates": 400', '"stop_after_updates": 60'))
    assert accuracy(simulate(job, tmp_path / "first", [], timeout=300.0)) > 0.5
    job.write_text(job.read_text().replace('"stop_after_updates": 60', '"stop_after_updates": 90'))
    task = app / "my_job" / "task.py"
    report = '{"secureafl-epsilon": 2.5, "secureafl-delta": 1e-5}'  # as a client that trains privately returns it
    task.write_text(task.read_text().replace("is_malicious else trained", f"is_malicious else (trained, {report})"))
    simulate(job, tmp_path / "second", ["--resume"], timeout=300.0)
    rows = read_journal(app / "runs" / "first")
    said = [row.evidence for row in rows if row.event is Event.REPORTED]
    assert len(said) > 5
    assert all(evidence == {"epsilon": 2.5, "delta": 1e-5} for evidence in said)
    assert [row.event for row in rows].count(Event.RESUMED) == 1
    assert count_arrivals(rows) == 90
