"""Every command in a terminal of 80 columns, in one of 200, and in a pipe: no id is cut, no word is broken."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer.main
from tests.end_to_end.type_commands import MARK
from tests.lab.tiny import write_tiny_fashion
from tests.server.recorded_runs import record

from secureafl.cli import app
from secureafl.defenses.secureafl import SecureAFLSettings
from secureafl.server.record.names import NAMES

pytestmark = pytest.mark.end_to_end

IDS = [f"{7345310127518283649 + 1000000007 * place}" for place in range(8)]
"""As Flower's: up to twenty digits, and the first ones much alike."""
NAMED = {IDS[0]: "st-elsewhere-general", IDS[1]: "hospital-b"}
WHOLE_WORDS = ["changed-too-abruptly", "first-contact", "against-consensus", *SecureAFLSettings.model_fields]
NOT_TYPED = {
    "dashboard": "it serves until Ctrl-C; it prints an address and no table",
    "standby": "it follows a run in a database until its server is gone; it prints lines",
    "warm": "it runs another command, and prints nothing of its own",
}


def commands(place: Path) -> list[list[str]]:
    tiny = ["--source", str(place / "data"), "--architecture", "small-cnn", "--rounds", "20", "--out", "lab"]
    tiny += ["--attack", "scaling", "--set", "num_clients=8", "--set", "batch_size=4"]
    return [
        ["--version"],
        ["defenses"],
        ["defenses", "secureafl"],
        ["new", "my-app"],
        ["check", "my-app"],
        ["audit", "run"],
        ["audit", "run", "--update", "3"],
        ["audit", "run", "--csv"],
        ["audit", "named"],
        ["watch", "run", "--once"],
        ["watch", "named", "--once"],
        ["replay", "run", "--defense", "kardam"],
        ["replay", "named", "--defense", "asyncsgd"],
        ["eject", "run", "--client", IDS[2], "--out", "fixed"],
        ["eject", "run", "--client", "nobody", "--out", "again"],
        ["eject", "named", "--client", "st-else", "--out", "fixed-by-name"],
        ["verify", "run"],
        ["copy", "run", "copied"],
        ["resume", "run"],
        ["keygen", "key.pem"],
        ["lab", "run", *tiny],
        ["lab", "sweep", "--list"],
        ["lab", "report", "nothing", "--out", "lab"],
    ]


def test_every_command_is_typed() -> None:
    root = typer.main.get_command(app)
    typed = {" ".join(words[:2]) if words[0] == "lab" else words[0] for words in commands(Path())}
    known = {name for name in root.commands if name != "lab"}  # type: ignore[attr-defined]
    known |= {f"lab {name}" for name in root.commands["lab"].commands}  # type: ignore[attr-defined]
    assert known - set(NOT_TYPED) == typed - {"--version"}


def typed(place: Path, columns: int | None) -> dict[str, list[str]]:
    """The lines that each command prints in a terminal of this width, or in a pipe."""
    place.mkdir()
    record(place / "run", 60, names=IDS).journal.close()
    record(place / "named", 60, names=IDS).journal.close()
    (place / "named" / NAMES).write_text("".join(f'"{client}" = "{name}"\n' for client, name in NAMED.items()))
    write_tiny_fashion(place / "data")
    (place / "commands.json").write_text(json.dumps(commands(place)))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm", "NO_COLOR": "1", "XDG_CACHE_HOME": str(place / "cache")}
    script = Path(__file__).with_name("type_commands.py")
    command = [sys.executable, str(script), "commands.json"]
    if columns is None:
        done = subprocess.run(command, cwd=place, env=environment, stdout=-1, stderr=subprocess.STDOUT, timeout=500)
        said = done.stdout
    else:
        said = _in_terminal(command, place, environment, columns)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r\n", "\n")
    parts = [part.partition("\n") for part in text.split(MARK)[1:]]
    return {" ".join(json.loads(words)): [_last(line) for line in output.split("\n")] for words, _, output in parts}


def _last(line: str) -> str:
    """What is left of a line that was written over, as a moving bar is."""
    return line.rstrip("\r").rpartition("\r")[2].rstrip()


def _in_terminal(command: list[str], place: Path, environment: dict[str, str], columns: int) -> bytes:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(command, cwd=place, env=environment, stdout=theirs, stderr=theirs, stdin=theirs) as child:
        os.close(theirs)
        said = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the child has closed its end
                break
            if not piece:
                break
            said += piece
        child.wait(60)
    os.close(ours)
    return said


@pytest.mark.parametrize("columns", [80, 200, None], ids=["80", "200", "pipe"])
def test_no_id_is_cut_and_nothing_wraps_into_nonsense(columns: int | None, tmp_path: Path) -> None:
    found = typed(tmp_path / "place", columns)
    assert len(found) == len(commands(Path()))
    for words, lines in found.items():
        text = "\n".join(lines)
        assert "Traceback" not in text, f"{words}:\n{text}"
        for whole in (*IDS, *NAMED.values(), *WHOLE_WORDS):
            _is_whole(whole, words, text)
    ways = {"audit run", "replay run --defense kardam", "watch run --once"}
    for words in ways:
        ours = [client for client in IDS if any(client in line for line in found[words])]
        assert ours == IDS or "watch" in words, f"{words} at {columns}: {found[words]}"
    for words in ("audit named", "replay named --defense asyncsgd"):
        assert all(any(name in line for line in found[words]) for name in NAMED.values())
    header = next(line for line in found["audit run"] if line.startswith("client"))
    assert ("seen" in header) == (columns != 80)
    if columns is not None:
        tables = [words for words in found if words.split()[0] in ("audit", "watch", "replay", "defenses", "lab")]
        for words in tables:
            if "--csv" not in words and "nobody" not in words:
                soft = ("Picture:", "RUN", "there is no sweep", "  ")
                wide = [line for line in found[words] if len(line) > columns and not line.startswith(soft)]
                assert wide == [], f"{words} at {columns}"
    else:
        assert not any(line.endswith("…") for lines in found.values() for line in lines)


def _is_whole(whole: str, words: str, text: str) -> None:
    """Wherever the first part of this word stands, the rest follows. Shorter words that begin alike are no fault."""
    if len(whole) < 12:
        return
    start = whole[:-3]
    broken = [text[at.start() : at.start() + len(whole) + 5] for at in re.finditer(re.escape(start), text)]
    assert all(piece.startswith(whole) for piece in broken), f"{words}: {whole} is cut in {broken}"
    assert f"{start[:9]}…" not in text, f"{words}: {whole} is cut"
