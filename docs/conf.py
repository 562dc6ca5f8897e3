"""Sphinx settings."""

from importlib import metadata

project = "SecureAFL"
author = "The SecureAFL authors"
project_copyright = "2026, The SecureAFL authors"
try:
    release = metadata.version("secureafl")
except metadata.PackageNotFoundError:  # the pages can be built without installing the package
    release = ""

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

myst_heading_anchors = 3

html_theme = "furo"
html_title = f"SecureAFL {release}".strip()
