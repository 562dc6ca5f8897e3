"""Text that clients send, made safe to show and to keep: names, and the reasons of their failures. Sizes in words."""

from __future__ import annotations

MAX_REASON = 200
"""Characters of a reason that are kept and shown."""

MAX_NAME = 200
"""Characters of a client's name. A longer one is not cut, as two might then be one: its owner gets no work."""

FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the beginning of a formula."""


def visible(text: str) -> str:
    r"""Control characters and others that do not show become escapes such as `\x1b`."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def name_fault(name: str) -> str | None:
    """Why a client cannot take part under this name; None if it can."""
    if not 1 <= len(name) <= MAX_NAME:
        return f"a client's name has {len(name)} characters: 1 to {MAX_NAME} are allowed"
    try:
        is_text = b"\0" not in name.encode()  # PostgreSQL takes none in a text
    except UnicodeEncodeError:
        is_text = False
    return None if is_text else f"a client's name is no text: {visible(name)}"


def one_line(text: str, limit: int = MAX_REASON) -> str:
    """The same on one line, cut to `limit` characters: for reasons, before they are recorded and where they show."""
    words = text.split(None, limit)  # more words do not fit in, however long the text is
    line = visible(" ".join(words)[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_bytes(count: float) -> str:
    """So many bytes, in the largest unit of which there is one."""
    units = ["TB", "GB", "MB", "kB", "bytes"]
    while count >= 1000 and len(units) > 1:
        count, _ = count / 1000, units.pop()
    return f"{count:.0f} {units[-1]}" if count >= 100 or units[-1] == "bytes" else f"{count:.2g} {units[-1]}"


def csv_cell(value: object) -> object:
    """A value for a CSV file. Text that a spreadsheet would calculate gets a quotation mark in front."""
    if isinstance(value, int | float) or value is None:
        return value
    text = visible(str(value))
    return f"'{text}" if text.lstrip().startswith(FORMULA) else text
