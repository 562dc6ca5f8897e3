import importlib.util
import os
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from secureafl.cli import app, check
from secureafl.cli.check import Finding, Level, check_app, read_app, state_bytes
from secureafl.cli.new import Engine, create_app, next_commands
from secureafl.engines.signing import write_key_pair
from secureafl.server import Machine, Run
from secureafl.server.record.address import RunUrl
from secureafl.server.record.resumption import ask_to_resume

runner = CliRunner()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A new Flower app. Its package has a name of its own, as Python keeps what it imported."""
    name = re.sub(r"\W+", "_", request.node.name)
    create_app(tmp_path / name, Engine.FLOWER)
    return tmp_path / name


def change(folder: Path, old: str, new: str) -> None:
    project = folder / "pyproject.toml"
    assert old in project.read_text()
    project.write_text(project.read_text().replace(old, new))


def add(folder: Path, line: str) -> None:
    change(folder, "evaluate-every = 25", f"evaluate-every = 25\n{line}")


def problems(folder: Path, **known: int) -> list[Finding]:
    return [finding for finding in check_app(folder, **known) if finding.level is Level.PROBLEM]


def said(folder: Path, about: str, **known: int) -> tuple[Level, str]:
    found = [finding for finding in check_app(folder, **known) if finding.about == about]
    assert found, f"nothing about {about}"
    return found[0].level, found[0].text


def test_a_new_app_has_no_problem(folder: Path) -> None:
    assert problems(folder) == []
    assert said(folder, "model") == (Level.OK, "63 parameters in 2 arrays")
    assert not (folder / "runs").exists()  # nothing is written


def test_the_command_ends_with_what_it_comes_to(folder: Path) -> None:
    good = runner.invoke(app, ["check", str(folder)])
    assert (good.exit_code, good.output.splitlines()[-1]) == (0, "Nothing stands in its way.")
    change(folder, "stop-after-updates", "stop-after-update")
    bad = runner.invoke(app, ["check", str(folder)])
    assert bad.exit_code == 1
    assert " ".join(bad.output.split()) == (
        "problem settings [tool.flwr.app.config.secureafl] has no setting 'stop-after-update'; did you mean"
        " 'stop-after-updates'? 1 problem: it would not run as it is."
    )


def test_without_ray_a_new_app_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    [note] = [one for one in check_app(folder) if one.about == "engine"]
    assert note.level is Level.NOTE
    assert note.text.endswith('pip install "flwr[simulation]"')
    assert next(next_commands(Engine.FLOWER)) == 'pip install "flwr[simulation]"'
    assert next(next_commands(Engine.NVFLARE)) == "secureafl check ."


def test_without_an_end_it_says_so(folder: Path) -> None:
    change(folder, "stop-after-updates = 400\n", "")
    assert said(folder, "end") == (
        Level.NOTE,
        "none: the run goes on until it is stopped; set stop-after-updates for one",
    )


def test_too_few_keys_and_a_keys_file_that_is_missing(folder: Path, tmp_path: Path) -> None:
    add(folder, f'keys-file = "{tmp_path}/keys.toml"')
    level, text = said(folder, "keys")
    assert level is Level.PROBLEM
    assert "keys.toml" in text
    (tmp_path / "keys.toml").write_text(f'a = "{write_key_pair(tmp_path / "a.pem")}"\n')
    level, text = said(folder, "keys")
    assert level is Level.PROBLEM
    assert text.endswith("keys.toml has 1 keys, and 10 clients have to be there: add the others'")
    change(folder, "min-nodes = 10", "min-nodes = 1")
    assert said(folder, "keys")[0] is Level.OK


def test_a_port_in_use(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        add(folder, f"metrics-port = {port}")
        level, text = said(folder, "port")
        assert level is Level.PROBLEM
        assert f"127.0.0.1:{port} cannot be opened" in text
    assert said(folder, "port") == (Level.OK, f"127.0.0.1:{port} is free, for metrics")


def test_a_run_on_record(folder: Path) -> None:
    place = folder / "runs" / "first"
    settings = read_app(folder).settings
    run = Run(Machine(settings.make_defense(63), np.zeros(63, np.float32), settings.machine()), settings)
    assert "another server has the run" in said(folder, "record")[1]
    run.close()
    level, text = said(folder, "record")
    assert level is Level.PROBLEM
    assert f"{place} already holds a run: go on with it (secureafl resume {place}), or set another run-dir" in text
    ask_to_resume(place)
    assert said(folder, "record") == (Level.OK, f"goes on with the run in {place}")


def test_nothing_to_resume(folder: Path) -> None:
    change(folder, "resume = false", "resume = true")
    assert said(folder, "record")[0] is Level.PROBLEM


def test_a_folder_that_cannot_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert "cannot be written to: choose another run-dir" in said(folder, "record")[1]


def test_a_database_that_does_not_answer(folder: Path) -> None:
    change(folder, f'run-dir = "{folder}/runs/first"', 'run-dir = "postgresql://nobody@127.0.0.1:1/runs/today"')
    level, text = said(folder, "record")
    assert level is Level.PROBLEM
    assert "cannot open the run's database" in text


def test_a_run_in_a_database(folder: Path, run_url: RunUrl) -> None:
    change(folder, f'run-dir = "{folder}/runs/first"', f'run-dir = "{run_url}"')
    assert said(folder, "record") == (Level.OK, f"a new run in {run_url}")


def test_an_app_that_does_not_list_resume(folder: Path) -> None:
    change(folder, "resume = false", "")
    level, text = said(folder, "resume")
    assert level is Level.NOTE
    assert f"use: secureafl resume {folder}/runs/first" in text


def test_too_little_memory_and_too_little_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = folder / folder.name / "task.py"
    task.write_text(
        task.read_text().replace("NUM_FEATURES, NUM_CLASSES = 20, 3", "NUM_FEATURES, NUM_CLASSES = 3000, 3")
    )
    monkeypatch.setattr(check, "free_memory", lambda: 1e6)
    assert said(folder, "memory", num_clients=1000)[0] is Level.PROBLEM
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**6))
    level, text = said(folder, "disk")
    assert level is Level.PROBLEM
    assert text.startswith("14.4 MB of updates, and ")  # 400 x 9,003 x 4
    assert text.endswith("only 1 MB are free on that disk; max-journal-bytes sets a limit")


def test_memory_is_what_the_server_keeps(folder: Path) -> None:
    found = read_app(folder)
    assert state_bytes(found, 5000, 40) == pytest.approx(check._measured(found, 5000, 40), rel=0.02)


def test_trusted_data_that_is_missing(folder: Path) -> None:
    change(folder, 'defense = "secureafl"', 'defense = "zenopp"')
    assert said(folder, "defense") == (
        Level.PROBLEM,
        "defense 'zenopp' judges by the server's own trusted data: pass reference=",
    )


def test_a_model_that_cannot_be_made_and_a_server_that_is_not_found(folder: Path) -> None:
    change(folder, ".server_app:app", ".server_ap:app")
    assert "there is no module" in problems(folder)[0].text
    change(folder, ".server_ap:app", ".server_app:app")
    task = folder / folder.name / "task.py"
    task.write_text(task.read_text().replace('    return {\n        "weight"', '    return 1 / 0, {\n        "weight"'))
    assert "cannot be made: ZeroDivisionError: division by zero" in problems(folder)[0].text


def test_an_nvflare_job(tmp_path: Path) -> None:
    create_app(tmp_path / "a-job", Engine.NVFLARE)
    assert problems(tmp_path / "a-job") == []
    job = tmp_path / "a-job" / "job.py"
    job.write_text(job.read_text().replace('"server_lr"', '"server_rl"'))
    assert [finding.text for finding in problems(job)] == [
        "NVFlareSettings has no setting 'server_rl'; did you mean 'server_lr'?"
    ]
    job.write_text("x = 1\n")
    assert "shows no server: give it a function `server()`" in problems(job)[0].text


def test_a_folder_without_an_app(tmp_path: Path) -> None:
    assert "make one with: secureafl new my-app" in problems(tmp_path)[0].text
