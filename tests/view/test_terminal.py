import io
from pathlib import Path

import numpy as np
from rich.console import Console
from tests.server.recorded_runs import LIARS, record
from tests.view.journals import append_arrivals, write_arrivals

from secureafl.files import FolderLock
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.sqlite import create_journal
from secureafl.view.overview import overview
from secureafl.view.reader import RunReader
from secureafl.view.terminal import picture, sparkline, watch


def printed(run: Path, **options: object) -> str:
    console = Console(file=io.StringIO(), width=110, height=40)
    watch(run, console, **options)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_picture_of_a_recorded_run(tmp_path: Path) -> None:
    record(tmp_path, 200).journal.close()
    now, text = overview(RunReader(tmp_path)), printed(tmp_path, once=True)
    assert f"{now.accepted} (" in text
    assert f"{now.rejected} (" in text
    assert "changed-too-abruptly" in text
    for liar in LIARS:
        assert f"client-{liar}" in text
    assert "nobody writes to this run" in text


def test_it_follows_a_live_run_and_ends_with_it(tmp_path: Path) -> None:
    journal, server = create_journal(tmp_path / "run.db"), FolderLock(tmp_path)
    append_arrivals(journal, 8)
    looks: list[int] = []

    def meanwhile(seconds: float) -> None:
        looks.append(len(looks))
        if len(looks) < 3:
            append_arrivals(journal, 8, first=8 * len(looks))
        else:
            journal.append(Entry(9.0, 24, "", Event.FINISHED))

    text = printed(tmp_path, sleep=meanwhile)
    assert len(looks) == 3
    assert "finished" in text
    assert "18 (75%)" in text, "a quarter of 24 was rejected"
    server.release()
    journal.close()


def test_it_ends_when_the_user_has_seen_enough(tmp_path: Path) -> None:
    journal = create_journal(tmp_path / "run.db")

    def enough(seconds: float) -> None:
        raise KeyboardInterrupt

    assert "No update has arrived yet." in printed(tmp_path, sleep=enough)
    journal.close()


def test_names_are_neither_markup_nor_commands_to_the_terminal(tmp_path: Path) -> None:
    write_arrivals(tmp_path, 24, clients=("[red]x[/red]", "\x1b[2Jy", "z"))
    text = printed(tmp_path, once=True)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert r"\x1b[2Jy" in text


def test_it_fits_a_small_terminal(tmp_path: Path) -> None:
    write_arrivals(tmp_path, 80, clients=tuple(f"client-{k}" for k in range(20)))
    console = Console(file=io.StringIO(), width=80, height=24)
    assert len(console.render_lines(picture(RunReader(tmp_path), 24))) <= 24


def test_sparklines_begin_at_nought() -> None:
    assert sparkline(np.array([0.0, 1.0, 4.0, 8.0, np.nan])) == " ▁▄█ "
    assert sparkline(np.array([])) == ""
    assert sparkline(np.zeros(3)) == "   "
