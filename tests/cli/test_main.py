import csv
import io
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.recorded_runs import record
from tests.view.journals import write_arrivals
from typer.testing import CliRunner

from secureafl import __version__
from secureafl.cli import app
from secureafl.cli.main import console
from secureafl.defenses import DEFENSES
from secureafl.server.record.folder import FolderFiles
from secureafl.server.record.snapshots import Snapshots

runner = CliRunner()


def test_help_says_what_it_is_and_where_to_start() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "some clients are malicious" in " ".join(result.output.split())
    assert "secureafl defenses" in result.output


def test_no_arguments_show_the_help() -> None:
    assert "Usage" in runner.invoke(app, []).output


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"secureafl {__version__}\n"


def test_defenses_are_listed() -> None:
    result = runner.invoke(app, ["defenses"])
    assert result.exit_code == 0
    assert all(name in result.output for name in DEFENSES)


@pytest.mark.parametrize("name", DEFENSES)
def test_each_defense_shows_all_its_settings(name: str) -> None:
    result = runner.invoke(app, ["defenses", name])
    assert result.exit_code == 0
    for key in DEFENSES[name].settings.model_fields:
        assert key in result.output


def test_a_misspelt_defense_is_met_with_the_nearest() -> None:
    result = runner.invoke(app, ["defenses", "kardan"])
    assert result.exit_code == 2
    assert "did you mean 'kardam'?" in result.output


def test_audit_shows_clients_as_table_json_and_csv(tmp_path: Path) -> None:
    record(tmp_path / "run", 60).journal.close()
    table = runner.invoke(app, ["audit", str(tmp_path / "run")])
    assert table.exit_code == 0
    assert "client-0" in table.output
    as_json = json.loads(runner.invoke(app, ["audit", str(tmp_path / "run"), "--json"]).output)
    as_csv = list(csv.DictReader(io.StringIO(runner.invoke(app, ["audit", str(tmp_path / "run"), "--csv"]).output)))
    assert len(as_json) == len(as_csv) == 8
    assert sum(record["arrivals"] for record in as_json) == 60


def test_in_a_terminal_tables_stop_after_the_worst_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run", 60).journal.close()
    monkeypatch.setattr("secureafl.cli.main.MAX_ROWS", 5)

    def shown(*words: str) -> str:
        result = runner.invoke(app, [words[0], str(tmp_path / "run"), *words[1:]])
        assert result.exit_code == 0, result.output
        return result.output

    def clients(text: str) -> list[str]:
        return re.findall(r"^[│ ]*(client-\d+)", text, re.MULTILINE)

    complete = {way: clients(shown(*way)) for way in (("audit",), ("replay", "--defense", "asyncsgd"))}
    monkeypatch.setattr(console, "_force_terminal", True)
    for way, everyone in complete.items():
        assert len(everyone) == 8, "in a pipe all are there"
        text = shown(*way)
        assert clients(text) == everyone[:5], "the worst come first"
        assert "… and 3 more clients: --all shows them" in text
        assert clients(shown(*way, "--all")) == everyone


def test_audit_of_one_client_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    record(tmp_path / "run", 60).journal.close()
    (tmp_path / "run" / "names.toml").write_text('"client-0" = "north"\n')
    wanted = {
        one["client"]: one for one in json.loads(runner.invoke(app, ["audit", f"{tmp_path}/run", "--json"]).output)
    }
    for asked in ("client-0", "nor"):
        found = runner.invoke(app, ["audit", str(tmp_path / "run"), "--client", asked, "--json"])
        assert json.loads(found.output) == {**wanted["client-0"], "influence": None}
    told = runner.invoke(app, ["audit", str(tmp_path / "run"), "--client", "north"]).output
    assert f"of {wanted['client-0']['arrivals']} updates accepted" in told
    missing = runner.invoke(app, ["audit", str(tmp_path / "run"), "--client", "south"])
    assert missing.exit_code == 2
    assert "knows no client south" in missing.output


def test_audit_explains_one_verdict(tmp_path: Path) -> None:
    record(tmp_path / "run", 20).journal.close()
    assert "Arrival 3: client" in runner.invoke(app, ["audit", str(tmp_path / "run"), "--update", "3"]).output
    missing = runner.invoke(app, ["audit", str(tmp_path / "run"), "--update", "99"])
    assert missing.exit_code == 2
    assert "has no arrival 99" in missing.output


def test_audit_shows_a_name_as_it_is(tmp_path: Path) -> None:
    run = write_arrivals(tmp_path / "run", 8, clients=("[red]x[/red]", "\x1b[2Jy"), defense="asyncsgd")
    (run / "snapshots").mkdir()
    Snapshots(FolderFiles(run)).write_first(np.zeros(2, np.float32))
    for words in (["audit", str(run)], ["audit", str(run), "--update", "2"]):
        output = runner.invoke(app, words).output
        assert "[red]x[/red]" in output
        assert "\x1b" not in output
    assert r"\x1b[2Jy" in runner.invoke(app, ["audit", str(run)]).output


HOSTILE = ["[/x]", "[red]y[/red]", "\x1b[2Jz", "=1+1", "a\r\nb", "\u202eright", ":smile:", "C:\\new"]
"""Names that are markup, commands to a terminal, or a formula."""


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "RUN"],
        ["audit", "RUN", "--update", "3"],
        ["audit", "RUN", "--csv"],
        ["watch", "RUN", "--once"],
        ["replay", "RUN", "--defense", "asyncsgd"],
        ["eject", "RUN", "--client", "nobody", "--out", "OUT"],
    ],
)
def test_names_are_shown_as_text_by_every_command(words: list[str], tmp_path: Path) -> None:
    record(tmp_path / "RUN", 60, names=HOSTILE).journal.close()
    output = runner.invoke(app, [str(tmp_path / word) if word.isupper() else word for word in words]).output
    assert "Traceback" not in output
    assert all(line.isprintable() for line in output.splitlines())
    if "--update" not in words and "watch" not in words:
        for name in ("[/x]", "[red]y[/red]", r"\x1b[2Jz", r"a\r\nb", r"\u202eright", ":smile:"):
            assert name in output


def test_a_name_is_no_formula_in_csv(tmp_path: Path) -> None:
    record(tmp_path / "run", 60, names=HOSTILE).journal.close()
    rows = csv.DictReader(io.StringIO(runner.invoke(app, ["audit", str(tmp_path / "run"), "--csv"]).output))
    assert "'=1+1" in {row["client"] for row in rows}


def test_replay_compares_two_defenses(tmp_path: Path) -> None:
    record(tmp_path / "run", 60).journal.close()
    result = runner.invoke(app, ["replay", str(tmp_path / "run"), "--defense", "kardam", "--set", "dampening=none"])
    assert result.exit_code == 0, result.output
    assert "secureafl then, kardam now" in " ".join(result.output.split())
    assert "The two models ended" in result.output


def test_replay_scores_both_models_with_a_function_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run", 60).journal.close()
    (tmp_path / "my_scores.py").write_text("def size(params):\n    return {'size': float(abs(params).sum())}\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["replay", "run", "--defense", "asyncsgd", "--evaluate", "my_scores:size", "--evaluate-every", "30"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "size then" in result.output
    assert [line for line in result.output.splitlines() if line.startswith("│ 60")]
    missing = runner.invoke(app, ["replay", "run", "--evaluate", "my_scores:nothing"])
    assert missing.exit_code == 2
    assert "has no 'nothing'" in missing.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "RUN", "--set", "percentil=0.5"], "did you mean 'percentile'?"),
        (["replay", "RUN", "--set", "percentile"], "write KEY=VALUE"),
        (["replay", "RUN", "--defense", "zenopp"], "pass reference="),
        (["eject", "RUN", "--client", "nobody", "--out", "OUT"], "knows no client nobody"),
        (["keygen", "RUN"], "a key is never overwritten: name another file"),
        (["audit", "NOWHERE"], "holds no run"),
        (["watch", "NOWHERE", "--once"], "name the folder given as run-dir or --record"),
        (["dashboard", "NOWHERE"], "name the folder given as run-dir or --record"),
        (["dashboard", "RUN", "--token", "short"], "a token has at least 8"),
        (["dashboard", "RUN", "--host", "203.0.113.7"], "give an address of this machine"),
    ],
)
def test_mistakes_are_met_with_one_clear_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    record(tmp_path / "RUN", 10).journal.close()
    named = [str(tmp_path / word) if word.isupper() else word for word in arguments]
    result = runner.invoke(app, named)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_eject_writes_a_repaired_run(tmp_path: Path) -> None:
    record(tmp_path / "run", 60).journal.close()
    out = tmp_path / "repaired"
    result = runner.invoke(app, ["eject", str(tmp_path / "run"), "--client", "client-0", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert (out / "run.db").exists()
    assert "arrivals taken out" in result.output


def test_a_head_is_signed_and_checked_with_a_key_pair_of_ours(tmp_path: Path) -> None:
    record(tmp_path / "run", 10).journal.close()
    key, run = str(tmp_path / "operator.pem"), str(tmp_path / "run")
    public = runner.invoke(app, ["keygen", key]).output.strip()
    signed = runner.invoke(app, ["verify", run, "--sign", key])
    assert signed.exit_code == 0, signed.output
    checked = runner.invoke(app, ["verify", run, "--against", public])
    assert "nothing was changed up to row 20" in checked.output
    other = runner.invoke(app, ["keygen", str(tmp_path / "other.pem")]).output.strip()
    refused = runner.invoke(app, ["verify", run, "--against", other])
    assert (refused.exit_code, "was not signed with this key" in refused.output) == (2, True)


@pytest.mark.parametrize("words", [["eject", "RUN", "--client", "client-0", "--out", "OUT"], ["replay", "RUN"]])
@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ({"journal": "verdicts"}, "it was recorded with journal = verdicts"),
        ({"max_journal_bytes": 0}, "that of row 2 was forgotten (max-journal-bytes)"),
        ({"keep_rows": 5}, "were forgotten (keep-rows, keep-seconds)"),
    ],
)
def test_what_needs_every_update_says_so_first(
    words: list[str], kept: dict[str, Any], why: str, tmp_path: Path
) -> None:
    record(tmp_path / "RUN", 120, **kept).journal.close()
    result = runner.invoke(app, [str(tmp_path / word) if word.isupper() else word for word in words])
    said = " ".join(result.output.split())
    assert result.exit_code == 2
    assert f"{words[0]} needs every update" in said
    assert why in said
    assert "It can be audited and resumed; record with journal = full" in said
    assert not (tmp_path / "OUT").exists()


def test_watch_prints_one_picture(tmp_path: Path) -> None:
    record(tmp_path / "run", 60).journal.close()
    result = runner.invoke(app, ["watch", str(tmp_path / "run"), "--once"])
    assert result.exit_code == 0, result.output
    assert "model version" in result.output
    assert "Least accepted" in result.output


def test_dashboard_on_a_busy_port_says_what_to_do(tmp_path: Path) -> None:
    record(tmp_path / "run", 10).journal.close()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        result = runner.invoke(app, ["dashboard", str(tmp_path / "run"), "--port", str(port)])
    assert result.exit_code == 2
    assert result.output == (
        f"port {port} of 127.0.0.1 is in use: give another with --port, or --port 0 for any free one\n"
    )


def test_dashboard_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "secureafl.view.web.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = runner.invoke(app, ["dashboard", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output == 'This needs uvicorn, which is not installed: pip install "secureafl[ops]"\n'
