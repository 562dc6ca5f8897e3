import io
from collections import Counter

import numpy as np
from rich.console import Console

from secureafl.server import Result, Status
from secureafl.server.live.evaluation import Evaluation
from secureafl.server.report.progress import Progress, verdict_table


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
    text = printed(verdict_table(Result({"w": np.zeros(1)}, 13, 1.0, verdicts), "title"))
    assert text.index("bad") < text.index("good")
    assert "changed-too-abruptly 3" in text
    assert "25%" in text


def test_names_are_shown_as_text() -> None:
    verdicts = Counter({("[/x]", "accepted"): 1, ("\x1b[2Jy", "[red]odd[/red]"): 1})
    text = printed(verdict_table(Result({"w": np.zeros(1)}, 2, 1.0, verdicts), "title"))
    assert "[/x]" in text
    assert r"\x1b[2Jy" in text
    assert "[red]odd[/red] 1" in text


def test_a_metric_may_have_any_name() -> None:
    console = Console(file=io.StringIO(), width=200)
    Progress(console, "secureafl")(Status(1, 1, 0, 0.0, 1.0, 1, Evaluation(1, 1.0, {"accuracy[/x]": 0.5})))
    assert "accuracy[/x] 0.500" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_large_federation_shows_the_least_accepted_only() -> None:
    verdicts = Counter({(f"client-{k:03}", "accepted"): 1 for k in range(100)} | {("liar", "not-finite"): 1})
    text = printed(verdict_table(Result({"w": np.zeros(1)}, 101, 1.0, verdicts), "title"))
    assert "liar" in text
    assert "and 81 more, accepted more often" in text


def test_before_anyone_came_it_says_so() -> None:
    console = Console(file=io.StringIO())
    Progress(console, "secureafl")(Status(0, 0, 0, 0.0, 0.0, 0, None))
    assert console.file.getvalue() == "secureafl  waiting for clients\n"  # type: ignore[attr-defined]
