"""Every command that takes a run takes one in a database."""

from pathlib import Path

import pytest
from tests.server.recorded_runs import record
from typer.testing import CliRunner

from secureafl.cli import app
from secureafl.server.record.address import RunUrl

runner = CliRunner()


def say(*words: object) -> str:
    done = runner.invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_works_on_a_url(run_url: RunUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(run_url, 60).journal.close()
    whole = say("verify", run_url)
    assert f"{run_url} is whole: 121 rows, 60 updates, 1 snapshots." in whole
    assert "client-3" in say("audit", run_url)
    assert "Arrival 3: client" in say("audit", run_url, "--update", 3)
    assert "60 arrivals, secureafl then, kardam now" in " ".join(say("replay", run_url, "--defense", "kardam").split())
    assert "client-3" in say("watch", run_url, "--once")
    fixed = f"{run_url}-fixed"
    assert f"The repaired run is in {fixed}" in say("eject", run_url, "--client", "client-3", "--out", fixed)
    assert "is whole" in say("verify", fixed)
    head = whole.splitlines()[-1]
    assert say("copy", run_url, tmp_path / "back").splitlines()[-1] == head
    assert say("copy", tmp_path / "back", f"{run_url}-again").splitlines()[-1] == head


def test_every_command_works_on_a_run_with_objects(
    run_url: RunUrl, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "run", 60).journal.close()
    head = say("verify", tmp_path / "run").splitlines()[-1]
    for place in (bucket, tmp_path / "objects"):
        url = f"{run_url}-{len(str(place))}"
        assert say("copy", tmp_path / "run", url, "--objects", place).splitlines()[-1] == head
        assert say("verify", url).splitlines()[-1] == head
        assert "Arrival 3: client" in say("audit", url, "--update", 3)
        assert "60 arrivals, secureafl then, kardam now" in " ".join(say("replay", url, "--defense", "kardam").split())
        fixed = tmp_path / f"fixed-{len(str(place))}"
        assert "The repaired run is in" in say("eject", url, "--client", "client-3", "--out", fixed)
        assert say("copy", url, tmp_path / f"back-{len(str(place))}").splitlines()[-1] == head
    assert len(list((tmp_path / "objects").rglob("updates/*"))) == 60


def test_objects_are_for_a_copy_in_a_database(tmp_path: Path) -> None:
    done = runner.invoke(app, ["copy", str(tmp_path / "run"), str(tmp_path / "copy"), "--objects", str(tmp_path)])
    assert done.exit_code == 2
    assert "is for a run in a database" in " ".join(done.output.split())


def test_a_head_in_a_database_is_signed_into_the_present_folder(
    run_url: RunUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(run_url, 20).journal.close()
    public = say("keygen", "key.pem").strip()
    assert f"signed: {run_url.name}.head.signed" in say("verify", run_url, "--sign", "key.pem")
    assert "nothing was changed up to row" in say("verify", run_url, "--against", public)


def test_a_run_that_is_not_there_and_a_database_that_is_not_there_are_named(run_url: RunUrl) -> None:
    missing = runner.invoke(app, ["audit", str(run_url)])
    assert missing.exit_code == 2
    assert f"holds no run: there is none of the name '{run_url.name}' in this database" in missing.output
    unreachable = runner.invoke(app, ["verify", "postgresql://nobody@127.0.0.1:1/runs/today"])
    assert unreachable.exit_code == 2
    assert "cannot open the run's database postgresql://nobody@127.0.0.1:1/runs/today: " in unreachable.output
