import io
from collections import Counter
from pathlib import Path

import numpy as np
from rich.console import Console

from secureafl.server import Result, Status
from secureafl.server.live.evaluation import Evaluation
from secureafl.server.record.names import ClientNames
from secureafl.server.report.progress import Progress, closing_table


def printed(thing: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_one_line_says_how_it_goes() -> None:
    console = Console(file=io.StringIO(), width=40)
    latest = Evaluation(40, 3.0, {"accuracy": 0.8125})
    Progress(console, "secureafl", 100)(Status(42, 30, 12, 3.25, 7.5, 8, latest))
    line = console.file.getvalue()  # type: ignore[attr-defined]
    assert line.count("\n") == 1
    for part in ("secureafl", "updates 42/100", "accepted 30 rejected 12", "staleness 3.2", "accuracy 0.812"):
        assert part in line


def test_the_table_begins_with_the_least_accepted_client() -> None:
    verdicts = Counter({("good", "accepted"): 9, ("bad", "changed-too-abruptly"): 3, ("bad", "first-contact"): 1})
    text = printed(closing_table(Result({"w": np.zeros(1)}, 13, 1.0, verdicts), "secureafl"))
    assert text.index("bad") < text.index("good")
    assert "3 changed-too-abruptly" in text
    assert "25%" in text


def test_the_headline_says_how_it_went_since_the_restart_and_before() -> None:
    verdicts = Counter({("good", "accepted"): 9, ("bad", "too-long"): 3, ("bad", "malformed"): 2})
    last = [Evaluation(40, 3.0, {"accuracy": 0.8125})]
    whole = printed(closing_table(Result({"w": np.zeros(1)}, 12, 1.0, verdicts, last), "secureafl"))
    assert whole.splitlines()[0].strip() == "secureafl: 12 updates in 1 s, 5 rejected, accuracy 0.812"
    resumed = printed(closing_table(Result({"w": np.zeros(1)}, 40, 1.0, verdicts), "secureafl", place=Path("runs/x")))
    assert "secureafl: 40 updates in 1 s, 12 since the restart, 5 rejected" in resumed
    assert resumed.splitlines()[-1].strip() == "All of it: secureafl audit runs/x"


def test_the_operators_names_are_shown() -> None:
    verdicts = Counter({("7345310127518283649", "accepted"): 1})
    names = ClientNames({"7345310127518283649": "hospital-a"})
    text = printed(closing_table(Result({"w": np.zeros(1)}, 1, 1.0, verdicts), "secureafl", names=names))
    assert "hospital-a" in text
    assert "7345310127518283649" not in text


def test_names_are_shown_as_text() -> None:
    verdicts = Counter({("[/x]", "accepted"): 1, ("\x1b[2Jy", "[red]odd[/red]"): 1})
    text = printed(closing_table(Result({"w": np.zeros(1)}, 2, 1.0, verdicts), "secureafl"))
    assert "[/x]" in text
    assert r"\x1b[2Jy" in text
    assert "1 [red]odd[/red]" in text


def test_a_metric_may_have_any_name() -> None:
    console = Console(file=io.StringIO(), width=200)
    Progress(console, "secureafl")(Status(1, 1, 0, 0.0, 1.0, 1, Evaluation(1, 1.0, {"accuracy[/x]": 0.5})))
    assert "accuracy[/x] 0.500" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_large_federation_shows_the_least_accepted_only() -> None:
    verdicts = Counter({(f"client-{k:03}", "accepted"): 1 for k in range(100)} | {("liar", "not-finite"): 1})
    text = printed(closing_table(Result({"w": np.zeros(1)}, 101, 1.0, verdicts), "secureafl"))
    assert "liar" in text
    assert "96 more clients were accepted more often." in text


def test_before_anyone_came_it_says_so() -> None:
    console = Console(file=io.StringIO())
    Progress(console, "secureafl")(Status(0, 0, 0, 0.0, 0.0, 0, None))
    assert console.file.getvalue() == "secureafl  waiting for clients\n"  # type: ignore[attr-defined]
