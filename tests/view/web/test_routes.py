import json
import math
from pathlib import Path

import pytest
from starlette.types import ASGIApp
from tests.server.recorded_runs import LIARS, record
from tests.view.journals import write_arrivals
from tests.view.web.asgi import ask

from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import open_journal
from secureafl.server.review.audit import client_records, explain
from secureafl.types import Reason
from secureafl.view.reader import RunReader
from secureafl.view.web.routes import STATIC, application


def app_of(run: Path) -> ASGIApp:
    return application(RunReader(run), token=None, local_only=True)


def test_data_agree_with_the_audit(tmp_path: Path) -> None:
    run = record(tmp_path, 200)
    app, audited = app_of(tmp_path), client_records(run)
    summary = ask(app, "/api/summary").json()
    assert summary["tick"]["accepted"] == sum(found.accepted for found in audited)
    assert {row["client"] for row in summary["worst"][:2]} == {f"client-{k}" for k in LIARS}
    rows = ask(app, "/api/clients").json()["rows"]
    assert [row["client"] for row in rows] == [found.client for found in audited], "the least believed first"
    for row, found in zip(rows, audited, strict=True):
        assert row["rejected"] == dict(found.rejected)
        assert row["factor"] == found.summary()["lipschitz factor 50%"]
    charts = ask(app, "/api/charts").json()
    assert sum(charts["accepted"]) + sum(charts["rejected"]) == 200
    rejected = next(e for e in run.journal.entries(Event.ARRIVAL) if e.reason == Reason.CHANGED_TOO_ABRUPTLY)
    verdict = ask(app, f"/api/verdict?update={rejected.version}").json()
    assert verdict["words"] == explain(rejected)
    assert {row["name"]: row["value"] for row in verdict["evidence"]} == rejected.evidence
    assert all(row["meaning"] for row in verdict["evidence"])
    run.journal.close()


def test_the_operators_names_are_shown_and_found(tmp_path: Path) -> None:
    record(tmp_path, 200).journal.close()
    (tmp_path / "names.toml").write_text('client-0 = "hospital-a"\n')
    app = app_of(tmp_path)
    labels = {row["client"]: row["label"] for row in ask(app, "/api/summary").json()["worst"]}
    assert labels["client-0"] == "hospital-a"
    assert labels["client-1"] == "client-1"
    [found] = ask(app, "/api/clients?contains=hospital").json()["rows"]
    assert (found["client"], found["label"], found["id"]) == ("client-0", "hospital-a", "client-0")
    assert ask(app, "/api/client?name=client-0").json()["client"]["label"] == "hospital-a"


def test_clients_are_sorted_filtered_and_paged(tmp_path: Path) -> None:
    app = app_of(write_arrivals(tmp_path, 480, clients=tuple(f"client-{k:03d}" for k in range(120))))
    first = ask(app, "/api/clients?sort=client").json()
    assert (len(first["rows"]), first["num_pages"], first["found"], first["total"]) == (50, 3, 120, 120)
    last = ask(app, "/api/clients?sort=client&order=down&page=3").json()
    assert [row["client"] for row in last["rows"]] == [f"client-{k:03d}" for k in range(19, -1, -1)]
    assert ask(app, "/api/clients?page=99").json()["page"] == 3
    found = ask(app, "/api/clients?contains=CLIENT-01&sort=client").json()
    assert [row["client"] for row in found["rows"]] == [f"client-{k:03d}" for k in range(10, 20)]
    some = ask(app, "/api/clients?only=rejected").json()
    assert some["found"] == 30
    by_share = ask(app, "/api/clients?sort=accepted").json()["rows"]
    assert [row["share_accepted"] for row in by_share[:31]] == [0.0] * 30 + [1.0]


def test_one_clients_verdicts_are_paged_the_newest_first(tmp_path: Path) -> None:
    app = app_of(write_arrivals(tmp_path, 480))
    page = ask(app, "/api/client?name=b&page=2").json()
    versions = [version for version in range(480) if version % 3 == 1][::-1]
    assert [row["update"] for row in page["verdicts"]["rows"]] == versions[50:100]
    only = ask(app, "/api/client?name=b&only=rejected").json()["verdicts"]
    assert [row["update"] for row in only["rows"]] == [version for version in versions if version % 4 == 3]
    step = ask(app, f"/api/verdict?update={versions[1]}").json()
    assert (step["previous"], step["next"]) == (versions[2], versions[0])


def test_names_and_reasons_are_made_visible(tmp_path: Path) -> None:
    write_arrivals(tmp_path, 8, clients=("\x1b[2Jx", "b"), finished=False)
    journal = open_journal(tmp_path / "run.db")
    journal.append(Entry(1.0, 8, "\x1b[2Jx", Event.CLIENT_ERROR, "\x1b[2J\n" + "e" * 1000))
    journal.close()
    app = app_of(tmp_path)
    (event,) = ask(app, "/api/summary").json()["events"]
    assert event["reason"] == r"\x1b[2J " + "e" * 191 + "…"
    assert (event["client"], event["label"]) == ("\x1b[2Jx", r"\x1b[2Jx")
    rows = ask(app, "/api/clients").json()["rows"]
    assert {row["label"] for row in rows} == {r"\x1b[2Jx", "b"}
    verdict = ask(app, "/api/verdict?update=0").json()
    assert verdict["label"] == r"\x1b[2Jx"
    assert r"client \x1b[2Jx sent" in verdict["words"][0]


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/api/clients?sort=size", 400, "clients cannot be sorted by 'size'"),
        ("/api/clients?page=-1", 400, "is no whole number"),
        ("/api/verdict", 400, "is no whole number"),
        ("/api/verdict?update=1e3", 400, "is no whole number"),
        ("/api/verdict?update=40", 404, "knows nothing of that"),
        ("/api/client?name=nobody", 404, "knows nothing of that"),
    ],
)
def test_what_does_not_exist_is_said_so(address: str, status: int, message: str, tmp_path: Path) -> None:
    answer = ask(app_of(write_arrivals(tmp_path, 40)), address)
    assert answer.status == status
    assert message in answer.json()["error"]


def test_numbers_that_json_does_not_know_are_told_in_words(tmp_path: Path) -> None:
    record(tmp_path, 60).journal.close()  # its first thresholds are infinite
    app = app_of(tmp_path)
    for address in (
        "/api/charts",
        "/api/summary",
        "/api/clients",
        "/api/client?name=client-2",
        "/api/verdict?update=9",
    ):
        text = ask(app, address).body.decode()
        assert json.loads(text, parse_constant=lambda word: pytest.fail(word))
    evidence = ask(app, f"/api/verdict?update={endless(tmp_path)}").json()["evidence"]
    assert {"name": "threshold", "value": "∞", "meaning": "the limit it was held against"} in evidence


def endless(run: Path) -> int:
    """An update that was held against no limit."""
    thresholds: list[float] = RunReader(run).arrivals.table.threshold.tolist()
    return thresholds.index(math.inf)


def test_the_stream_sends_the_figures_at_once(tmp_path: Path) -> None:
    app = app_of(write_arrivals(tmp_path, 40))
    answer = ask(app, "/api/stream", stop_after=1)
    assert answer.headers["content-type"].startswith("text/event-stream")
    [line] = answer.body.decode().split("\n\n")[:-1]
    assert json.loads(line.removeprefix("data: "))["version"] == 40


def test_a_run_that_vanishes_is_reported_not_a_crash(tmp_path: Path) -> None:
    reader = RunReader(write_arrivals(tmp_path, 40))
    app = application(reader, token=None, local_only=True)
    (tmp_path / "run.db").unlink()
    reader._read_at = float("-inf")  # as if some time had passed
    answer = ask(app, "/api/summary")
    assert answer.status == 503
    assert "holds no run" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"])
def test_only_static_files_are_served(path: str, tmp_path: Path) -> None:
    assert ask(app_of(write_arrivals(tmp_path, 1)), path).status in (404, 405)


def test_pages_hold_no_inline_script_or_style_and_name_no_other_host() -> None:
    pages = sorted(STATIC.glob("*.html"))
    assert len(pages) == 6
    for page in pages:
        text = page.read_text()
        assert "<style" not in text
        assert " style=" not in text
        assert "onload" not in text
        assert text.count("<script") == text.count("<script src=") + text.count('<script type="module" src=')
    for file in [*pages, *STATIC.glob("*.js"), *STATIC.glob("*.css")]:
        assert "://" not in file.read_text(), file.name
        assert "innerHTML" not in file.read_text(), file.name


def test_the_chart_library_comes_with_its_licence() -> None:
    licence = (STATIC / "vendor" / "uplot" / "LICENSE").read_text()
    assert "MIT License" in licence
    assert "Leon Sorokin" in licence
