"""Docstrings as this project writes them, made into reStructuredText for autodoc.

They are plain text: `code` in single backticks, *stress*, formulas such as |g - g_ref|, indented blocks as they are,
and aligned columns of a name and what it means. Read as reStructuredText, half of that would be lost or an error.
"""

from __future__ import annotations

import re
import textwrap

CODE = re.compile(r"(`[^`]+`)")
STRESS = re.compile(r"(?<!\w)(\*\w[^*]*\*)(?!\w)")
COLUMNS = re.compile(r"^(\w[\w, ]*?)  +(\S.*)$")
BULLET = re.compile(r"^[-*] ")


def to_rst(docstring: str) -> list[str]:
    """The lines of the same text in reStructuredText."""
    lines: list[str] = []
    if not docstring.strip():
        return lines
    for block in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n")):
        lines += [*_block(block.splitlines()), ""]
    return lines


def _block(lines: list[str]) -> list[str]:
    if all(line.startswith("    ") for line in lines):
        return ["::", "", *lines]
    if COLUMNS.match(lines[0]) and all(COLUMNS.match(line) or line.startswith("  ") for line in lines):
        return _definitions(lines)
    if BULLET.match(lines[0]):
        return [line[:2] + _escaped(line[2:]) for line in lines]
    return [_escaped(line) for line in lines]


def _definitions(lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        columns = COLUMNS.match(line)
        if columns:
            found += [f"``{columns[1]}``", f"    {_escaped(columns[2])}"]
        else:
            found.append(f"    {_escaped(line.strip())}")
    return found


def _escaped(text: str) -> str:
    parts = []
    for part in CODE.split(text):
        if CODE.fullmatch(part):
            parts.append(f"`{part}`")
            continue
        for piece in STRESS.split(part):
            parts.append(piece if STRESS.fullmatch(piece) else re.sub(r"([\\*|_`])", r"\\\1", piece))
    return "".join(parts)
