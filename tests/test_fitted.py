import io

import pytest
from rich.console import Console
from rich.text import Text

from secureafl.fitted import UNLIMITED, FittedTable, PlainConsole

ID = "7345310127518283649"


def table() -> FittedTable:
    found = FittedTable(box=None, pad_edge=False)
    found.add_column("client")
    found.add_column("accepted", justify="right")
    found.add_column("seen", rank=2)
    found.add_column("why", rank=1)
    found.add_row(Text(ID), "50%", "12 s", Text("3 changed-too-abruptly"))
    return found


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("width", "header"),
    [
        (UNLIMITED, "client accepted seen why"),
        (59, "client accepted seen why"),
        (58, "client accepted why"),
        (53, "client accepted why"),
        (52, "client accepted"),
        (29, "client accepted"),
    ],
)
def test_columns_go_in_order_of_their_rank_and_names_stay_whole(width: int, header: str) -> None:
    first, second = printed(width)
    assert first.split() == header.split()
    assert second.startswith(ID)


def test_where_not_even_the_names_fit_they_fold_and_nothing_is_lost() -> None:
    lines = printed(20)
    assert "".join("".join(lines).split()).replace("accepted", "").replace("client", "").count("…") == 0
    assert all(len(line) <= 20 for line in lines)
    digits = "".join(character for line in lines for character in line.split(" ")[0] if character.isdigit())
    assert digits.startswith(ID[:8])


def test_a_pipe_is_as_wide_as_need_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert PlainConsole(file=io.StringIO()).width == UNLIMITED
    assert PlainConsole(file=io.StringIO(), force_terminal=True).width < 1000
    monkeypatch.setenv("COLUMNS", "100")
    assert PlainConsole(file=io.StringIO()).width == 100
