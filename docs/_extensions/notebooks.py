"""Notebooks as pages: their text, their code, and the outputs that they were committed with."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")


def page(name: str) -> str:
    """The notebook of this name as Markdown."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return "\n\n".join(_cell(cell) for cell in cells)


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return LINK.sub(_link, source)
    if source.startswith("!"):  # what a notebook hands to the shell
        source = "\n".join(line.replace("!", "$ ", 1) for line in source.splitlines())
    language = "console" if source.startswith("$ ") else "python"
    return "\n\n".join([f"```{language}\n{source}\n```", *map(_output, cell["outputs"])])


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
        return f'<div class="notebook-table">\n{markup}\n</div>'
    text = "".join(data.get("text/plain", output.get("text", ""))).rstrip()
    return f"```text\n{text}\n```"


def _words(data: dict[str, Any]) -> str:
    return html.escape("Output of the code above: a figure")
