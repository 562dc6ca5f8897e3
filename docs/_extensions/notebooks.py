"""Notebooks as pages: their text, their code, and the outputs that they were committed with."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
TABLE, STYLED = re.compile(r"<table[^>]*>"), '<table class="docutils">'
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")


def page(name: str) -> str:
    """The notebook of this name as Markdown."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return "\n\n".join(_cell(cell) for cell in cells)


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return LINK.sub(_link, source)
    return "\n\n".join([_code(source), *map(_output, cell["outputs"])])


def _code(source: str) -> str:
    """A cell's code; lines that begin with an exclamation mark are typed into a shell."""
    if all(line.startswith("!") for line in source.splitlines()):
        return "```console\n" + "\n".join(f"$ {line[1:]}" for line in source.splitlines()) + "\n```"
    return f"```python\n{source}\n```"


def _link(found: re.Match[str]) -> str:
    """Other notebooks are pages beside this one; what is in `docs` is reached from there."""
    target = found[1].removeprefix("../../docs/")
    return f"]({target.removesuffix('.ipynb')}.md)" if target.endswith(".ipynb") else f"](../{target})"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="{_words(data)}" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        markup = STYLE.sub("", "".join(data["text/html"])).replace("\n\n", "\n")
        return f'<div class="table-wrapper">\n{TABLE.sub(STYLED, markup)}\n</div>'
    text = "".join(data.get("text/plain", output.get("text", ""))).rstrip()
    return f"```text\n{text}\n```"


def _words(data: dict[str, Any]) -> str:
    return html.escape("Output of the code above: a figure")
