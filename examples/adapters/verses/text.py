"""The King James Bible: the Old Testament to pre-train on, the New Testament cut into one share per client."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

TEST_EVERY = 5
"""Every fifth chapter of the New Testament is held out."""
FIRST_NEW_CHAPTER = "Mat1"
COMMAND = ("bible", "-p", "/usr/lib", "-f", "gen1:1-rev22:21")
VERSE = re.compile(r"(\w+):\d+ (.*)")
HOW_TO_GET_IT = """The text was not found. Either
  - on Debian or Ubuntu: apt install bible-kjv, whose command `bible` prints it, or
  - set SECUREAFL_DATA to a folder that holds king-james/verses.txt, one verse a line: 'Ge1:1 In the beginning …'"""


def old_testament() -> str:
    """What the model is pre-trained on."""
    return " ".join(text for _, text in _testaments()[0])


def held_out() -> str:
    """What the model is evaluated on: chapters that no client has."""
    return " ".join(_new_chapters(held_out=True))


def share(partition_id: int, num_partitions: int) -> str:
    """The chapters of one client. They follow one another, so clients have different books."""
    parts = np.array_split(np.array(_new_chapters(held_out=False), dtype=object), num_partitions)
    return " ".join(parts[partition_id])


def _new_chapters(*, held_out: bool) -> list[str]:
    chapters = enumerate(_testaments()[1], start=1)
    return [text for number, (_, text) in chapters if (number % TEST_EVERY == 0) == held_out]


@functools.cache
def _testaments() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Each testament's chapters: name and text."""
    verses = [VERSE.fullmatch(line) for line in _read().splitlines()]
    if bad := [number for number, verse in enumerate(verses, start=1) if verse is None]:
        raise ValueError(f"line {bad[0]} is no verse such as 'Ge1:1 In the beginning …'")
    named = [(verse[1], verse[2]) for verse in verses if verse is not None]
    chapters = [
        (name, " ".join(text for _, text in group))
        for name, group in itertools.groupby(named, key=lambda verse: verse[0])
    ]
    start = [name for name, _ in chapters].index(FIRST_NEW_CHAPTER)
    return chapters[:start], chapters[start:]


def _read() -> str:
    file = Path(os.environ.get("SECUREAFL_DATA", ""), "king-james", "verses.txt")
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if shutil.which(COMMAND[0]) is None:
        raise FileNotFoundError(HOW_TO_GET_IT)
    return subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, check=True, encoding="utf-8").stdout
