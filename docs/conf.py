"""Sphinx settings."""

import re
import sys
from importlib import metadata
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "src")]

import generated  # noqa: E402
from docstrings import to_rst  # noqa: E402

project = "SecureAFL"
author = "The SecureAFL authors"
project_copyright = "2026, The SecureAFL authors"
try:
    release = metadata.version("secureafl")
except metadata.PackageNotFoundError:  # the pages can be built without installing the package
    release = ""

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True
# Pages of other projects are not looked at, and our own names are linked where they are on the page.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "amsmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
ALIASES = ("Vector", "Array", "NamedArrays", "StateDict", "Images", "Labels", "Reference", "Scorer", "Evaluate")
autodoc_type_aliases = {name: name for name in ALIASES}
autodoc_preserve_defaults = True

html_math_renderer = "mathml"  # browsers draw it by themselves; no script from elsewhere
html_theme = "furo"
html_title = f"SecureAFL {release}".strip()


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = generated.fill(source[0])


def _always(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages made from the code are read anew each time."""
    pages = [name for name in env.found_docs if generated.parts_of(Path(env.doc2path(name)).read_text())]
    return [name for name in pages if name not in removed]


def _plain(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = to_rst("\n".join(lines))


def _aliases(
    app: Sphinx, what: str, name: str, obj: object, options: object, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Names of types as they stand in the code."""
    found = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return arguments and found.sub(r"\1", arguments), returns and found.sub(r"\1", returns)


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """A named tuple's fields have a docstring that says nothing."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def _inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _display(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div style="padding: 0.5em 0">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_display, None))
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _always)
    app.connect("autodoc-process-docstring", _plain)
    app.connect("autodoc-process-signature", _aliases)
    app.connect("autodoc-skip-member", _skip)
