"""Several runs: what the pages of a folder ask for."""

from pathlib import Path

import pytest
from starlette.types import ASGIApp
from tests.server.recorded_runs import record
from tests.view.journals import append_arrivals, write_arrivals
from tests.view.web.asgi import ask

from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import create_journal
from secureafl.view.run_folder import RunFolder
from secureafl.view.web.comparing import MAX_OVERLAID, _differing
from secureafl.view.web.routes import STATIC, application


def app_of(folder: Path) -> ASGIApp:
    return application(RunFolder(folder), token=None, local_only=True)


def test_every_run_has_a_row_also_a_broken_one(tmp_path: Path) -> None:
    write_arrivals(tmp_path / "one", 40)
    write_arrivals(tmp_path / "deep" / "two", 8, defense="kardam", finished=False)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(b"no database")
    answer = ask(app_of(tmp_path), "/api/runs").json()
    rows = {row["name"]: row for row in answer["rows"]}
    assert list(rows) == ["broken", "deep/two", "one"]
    assert "cannot open" in rows["broken"]["error"]
    one, two = rows["one"], rows["deep/two"]
    assert (one["updates"], one["share_accepted"], one["state"]) == (40, 0.75, "finished")
    assert (one["reason"], one["clients"], one["notices"]) == ("changed-too-abruptly", 3, 0)
    assert (two["defense"], two["state"], two["key"]) == ("kardam", "stopped", "deep~two")


def test_each_run_has_its_own_pages_below_the_list(tmp_path: Path) -> None:
    write_arrivals(tmp_path / "a" / "one", 40)
    app = app_of(tmp_path)
    assert ask(app, "/").body == (STATIC / "runs.html").read_bytes()
    assert ask(app, "/run/a~one/").body == (STATIC / "overview.html").read_bytes()
    assert ask(app, "/run/a~one/api/summary").json()["tick"]["accepted"] == 30
    assert ask(app, "/run/a~one/static/style.css").status == 200
    first = ask(app, "/run/a~one/api/stream", stop_after=1).body
    assert b'"home": "../../"' in first
    for address in ("/run/none/", "/run/..%2f..%2fetc/", "/run/a~one/nothing"):
        assert ask(app, address).status == 404


def test_curves_of_several_runs(tmp_path: Path) -> None:
    write_arrivals(tmp_path / "one", 120)
    write_arrivals(tmp_path / "two", 60)
    app = app_of(tmp_path)
    answer = ask(app, "/api/overlay?run=two&run=one&along=updates").json()
    two, one = answer["runs"]
    assert (two["name"], one["name"]) == ("two", "one")
    assert one["rejected"][-1] == 30
    assert two["rejected"][-1] == 15
    assert all(len(one[name]) == len(one["middle"]) for name in ("share", "staleness", "rate", "rejected"))
    many = "&".join(["run=one"] * (MAX_OVERLAID + 1))
    assert "too many for one chart" in ask(app, f"/api/overlay?{many}").json()["error"]
    assert ask(app, "/api/overlay?run=three").status == 400


def test_two_runs_verdict_by_verdict(tmp_path: Path) -> None:
    record(tmp_path / "with", 150, defense="secureafl").journal.close()
    record(tmp_path / "without", 150, defense="asyncsgd").journal.close()
    app = app_of(tmp_path)
    answer = ask(app, "/api/versus?a=with&b=without").json()
    counts = answer["counts"]
    assert counts["both"] + counts["only_b"] == 150
    assert counts["only_b"] == answer["a"]["rejected"] > 0
    assert (counts["neither"], counts["only_a"], counts["alone_a"], counts["alone_b"]) == (0, 0, 0, 0)
    assert answer["settings"] == [{"name": "defense", "a": "secureafl", "b": "asyncsgd"}]
    for row in answer["verdicts"]["rows"]:
        assert row["a"]["client"] == row["b"]["client"]
        assert row["a"]["update"] == row["b"]["update"], "the same arrivals in the same order"
    differ = ask(app, "/api/versus?a=with&b=without&only=differ").json()["verdicts"]
    assert differ["found"] == counts["only_b"]
    assert not any(row["a"]["accepted"] for row in differ["rows"])
    gaps = [abs(row["gap"]) for row in answer["clients"]]
    assert gaps == sorted(gaps, reverse=True)
    assert {answer["clients"][0]["client"], answer["clients"][1]["client"]} == {"client-0", "client-1"}
    turned = ask(app, "/api/versus?a=without&b=with").json()["counts"]
    assert turned["only_a"] == counts["only_b"]
    assert ask(app, "/api/versus?a=with&b=nobody").status == 400


def test_clients_of_both_runs_stand_by_the_operators_names(tmp_path: Path) -> None:
    for name, given in (("one", 'a = "north"'), ("two", 'b = "south"\na = "another"')):
        write_arrivals(tmp_path / name, 30, clients=("a", "b", "c"))
        (tmp_path / name / "names.toml").write_text(given)
    answer = ask(app_of(tmp_path), "/api/versus?a=one&b=two").json()
    labels = {row["client"]: (row["label"], row.get("id")) for row in answer["clients"]}
    assert labels == {"a": ("north", "a"), "b": ("south", "b"), "c": ("c", None)}, "the left run's name comes first"
    [pair] = {(row["a"]["label"], row["b"]["label"]) for row in answer["verdicts"]["rows"] if row["a"]["client"] == "a"}
    assert pair == ("north", "another")


def test_updates_without_a_counterpart_are_counted(tmp_path: Path) -> None:
    write_arrivals(tmp_path / "long", 30, clients=("a", "b"))
    write_arrivals(tmp_path / "short", 10, clients=("b", "c"))
    app = app_of(tmp_path)
    answer = ask(app, "/api/versus?a=long&b=short").json()
    counts = answer["counts"]
    assert counts["alone_a"] == 25  # all of a, and ten of b's
    assert counts["alone_b"] == 5  # all of c
    assert sum(counts.values()) == 35
    pages = [ask(app, f"/api/versus?a=long&b=short&page={page}").json()["verdicts"] for page in (1, 2)]
    assert pages[0]["found"] == 35
    alone = [row for row in pages[0]["rows"] if row["a"] is None]
    assert {row["b"]["client"] for row in alone} == {"c"}


@pytest.mark.parametrize("name", ["vote", "steps_left"])
def test_a_clients_weights_are_told(name: str, tmp_path: Path) -> None:
    record(tmp_path / "one", 120).journal.close()
    write_arrivals(tmp_path / "plain", 12)
    app = app_of(tmp_path)
    answer = ask(app, "/run/one/api/client?name=client-3").json()
    weights = answer["weights"]
    assert len(weights["update"]) == len(weights[name]) == answer["client"]["arrivals"]
    assert weights[name][-1] == pytest.approx(answer["client"][name], rel=1e-4)
    assert ask(app, "/run/plain/api/client?name=a").json()["weights"] is None
    rows = ask(app, f"/run/one/api/clients?sort={'steps' if name == 'steps_left' else name}").json()
    values = [row[name] for row in rows["rows"]]
    assert values == sorted(values)
    assert (rows["has_votes"], rows["has_steps"]) == (True, True)
    plain = ask(app, "/run/plain/api/clients").json()
    assert (plain["has_votes"], plain["has_steps"]) == (False, False)


def test_notices_and_what_the_operator_said_are_in_the_list(tmp_path: Path) -> None:
    tmp_path.joinpath("run").mkdir()
    facts = {"defense": "secureafl", "defense_settings": {"vouched": ["b"], "weights": {"c": 0.5}}}
    journal = create_journal(tmp_path / "run" / "run.db", facts)
    append_arrivals(journal, 3)
    for version in range(3, 63):
        evidence = {"norm": 1.0, "vote": 0.1, "alike": 3.0, "steps_left": 2.0}
        client = "abc"[version % 3]
        journal.append(
            Entry(1.0, version, client, Event.ARRIVAL, "accepted", True, evidence, version, version), durable=False
        )
    journal.commit()
    journal.close()
    app = app_of(tmp_path)
    assert ask(app, "/api/runs").json()["rows"][0]["notices"] == 1
    rows = {row["client"]: row for row in ask(app, "/run/run/api/clients").json()["rows"]}
    assert "clients keep asking for much the same" in rows["a"]["notice"]
    assert (rows["b"]["said"], rows["c"]["said"]) == (["vouched"], ["weights 0.5"])
    assert rows["b"]["notice"] is rows["c"]["notice"] is None


def test_a_setting_called_like_a_fact_that_follows_is_compared() -> None:
    left, right = ({"memory": {"row": row}, "defense_settings": {"memory": pairs}} for row, pairs in ((1, 3), (2, 5)))
    assert _differing(left, right) == [{"name": "defense_settings.memory", "a": "3", "b": "5"}]


def test_of_two_defenses_the_settings_that_both_have_are_compared() -> None:
    left = {"defense": "secureafl", "defense_settings": {"percentile": 0.5, "window": 1000}}
    right = {"defense": "kardam", "defense_settings": {"window": 50}}
    assert _differing(left, right) == [
        {"name": "defense", "a": "secureafl", "b": "kardam"},
        {"name": "defense_settings.window", "a": "1000", "b": "50"},
    ]
