"""Types commands into the real command line, one after another in one process; each is announced by a line.

    python type_commands.py COMMANDS.json

A process of its own, so that its standard output is a terminal of a certain width, or a pipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MARK = "\x1e"


def main() -> None:
    from secureafl.cli import app

    for words in json.loads(Path(sys.argv[1]).read_text()):
        sys.stdout.write(f"{MARK}{json.dumps(words)}\n")
        sys.stdout.flush()
        try:
            app(words, prog_name="secureafl")
        except SystemExit as end:
            if end.code:
                sys.stdout.write(f"exit {end.code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
