import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secureafl.cli import app
from secureafl.cli.new import Engine, create_app
from secureafl.errors import SettingsError

runner = CliRunner()


@pytest.mark.parametrize("engine", list(Engine))
def test_a_new_app_is_clean_code_of_its_own_name(engine: Engine, tmp_path: Path) -> None:
    files = create_app(tmp_path / "My-App", engine)
    assert tmp_path / "My-App" / "my_app" / "task.py" in files
    assert not [path for path in files if "{{" in path.read_text()]
    plain = ["--isolated", "--line-length", "120", "."]
    for tool in (["check", "--select", "E,F,I,B,UP"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *tool, *plain]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_run_is_kept_in_the_apps_own_folder_wherever_the_server_starts(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" place' / "my-app"
    create_app(folder, Engine.FLOWER)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["config"]["secureafl"]["run-dir"] == str(folder / "runs" / "first")


@pytest.mark.parametrize("name", ["9lives", "class", "a/secureafl", "my+app"])
def test_a_name_that_is_no_package_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is no name for an app"):
        create_app(tmp_path / name, Engine.FLOWER)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingsError, match="exists already"):
        create_app(tmp_path / "mine", Engine.FLOWER)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_command_says_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["new", "my-app"])
    assert done.exit_code == 0
    assert done.output.splitlines()[-3:-1] == ["  cd my-app", "  secureafl check ."]
    assert done.output.splitlines()[-1].startswith("  flwr run . --stream --federation-config")
