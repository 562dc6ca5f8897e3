"""Pages that are made from the code when the documentation is built, so that they cannot fall behind it.

A page says where with a line such as `% generated: settings`; `fill` puts the text there, which is Markdown.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import click
import notebooks
import typer.main
import typer.utils
from docstrings import to_rst

import secureafl
from secureafl import cli
from secureafl.defenses import DEFENSES
from secureafl.lab.attacks import ATTACKS, AttackEntry
from secureafl.settings import Settings

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"^% generated: (\S+)$", re.MULTILINE)

BENCHMARKS = [path.stem for path in sorted((ROOT / "benchmarks").glob("[!_]*.py"))]
NOTEBOOKS = ("1-stop-an-attack", "2-write-a-defense", "3-read-a-record")
PUBLIC = (
    "secureafl",
    "secureafl.server",
    "secureafl.defenses",
    "secureafl.defenses.secureafl",
    "secureafl.engines.flower",
    "secureafl.engines.nvflare",
    "secureafl.engines.pytorch",
    "secureafl.lab",
    "secureafl.lab.attacks",
    "secureafl.lab.data",
    "secureafl.testing",
    "secureafl.errors",
)
"""Modules whose names users may rely on."""


def fill(source: str) -> str:
    """The page with every marked place filled in."""
    return MARKER.sub(lambda found: PARTS[found[1]](), source)


def parts_of(source: str) -> list[str]:
    """Which generated parts a page has."""
    return MARKER.findall(source)


# The interface


def names(module: str) -> list[str]:
    """The public names of a module: what `__all__` says, or the classes and functions that it defines."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__all__"):
        return [name for name in loaded.__all__ if name != "__version__"]
    return [name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module]


def interface(module: str) -> str:
    """The public names of a module that none before it has; settings are on a page of their own."""
    before = {id(value) for other in PUBLIC[: PUBLIC.index(module)] for value in _values(other).values()}
    entries, settings = [], []
    for name, value in _values(module).items():
        if inspect.isclass(value) and issubclass(value, Settings):
            settings.append(f"[`{name}`](../settings.md#{name.lower()})")
        elif id(value) not in before:
            entries.append(_autodoc(module, name, value))
    lines = ["```{eval-rst}", *entries, "```", ""]
    if settings:
        lines += [f"Settings: {', '.join(settings)}.", ""]
    return "\n".join(lines)


def _values(module: str) -> dict[str, object]:
    loaded = importlib.import_module(module)
    return {name: getattr(loaded, name) for name in names(module)}


def _autodoc(module: str, name: str, value: object) -> str:
    if inspect.isfunction(value):
        return f".. autofunction:: {module}.{name}\n"
    if inspect.isclass(value):
        return f".. autoclass:: {module}.{name}\n   :members:\n"
    lines = to_rst(data_docstring(name))
    return "\n".join([f".. py:data:: {module}.{name}", "", *(f"   {line}" for line in lines)])


@cache
def data_docstring(name: str) -> str:
    """The text below the assignment of a module's constant or alias, wherever in the package it is."""
    for path in sorted((ROOT / "src" / "secureafl").rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for statement, text in pairwise(body):
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            is_it = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if is_it and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                return inspect.cleandoc(str(text.value.value))
    return ""


# Settings


def settings_classes() -> list[type[Settings]]:
    """Every settings class of the package."""
    for found in pkgutil.walk_packages(secureafl.__path__, "secureafl."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    return [found for found in _subclasses(Settings) if found.__module__.startswith("secureafl.")]


def _subclasses(parent: type[Settings]) -> Iterator[type[Settings]]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)


def settings() -> str:
    """A table for every settings class: those of a federation first, then of defenses, attacks and experiments."""
    titles = {
        "Federations": "secureafl.server",
        "Engines": "secureafl.engines",
        "Defenses": "secureafl.defenses",
        "Attacks": "secureafl.lab.attacks",
        "Experiments": "secureafl.lab",
        "Others": "secureafl",
    }
    left = sorted(set(settings_classes()), key=lambda found: (found.__module__, found.__name__))
    sections = []
    for title, package in titles.items():
        here = [found for found in left if f"{found.__module__}.".startswith(f"{package}.")]
        left = [found for found in left if found not in here]
        if here:
            sections.append("\n".join([f"## {title}", "", *(_settings_section(found) for found in here)]))
    return "\n".join(sections)


def _settings_section(found: type[Settings]) -> str:
    lines = [f"### {found.__name__}", "", _flat(inspect.getdoc(found) or ""), ""]
    users = [f"defense `{name}`" for name, entry in DEFENSES.items() if entry.settings is found]
    users += [f"attack `{name}`" for name, entry in ATTACKS.items() if entry.settings is found]
    if users:
        lines += [f"For the {', '.join(users)}.", ""]
    bases = [base for base in found.__mro__[1:] if issubclass(base, Settings) and base is not Settings]
    if bases:
        linked = ", ".join(f"[{base.__name__}](#{base.__name__.lower()})" for base in bases if base.model_fields)
        lines += [f"Beside those of {linked}:", ""] if linked else []
    inherited = {name for base in bases for name in base.model_fields}
    own = {name: field for name, field in found.model_fields.items() if name not in inherited}
    if not own:
        return "\n".join([*lines, "Nothing of its own to set." if bases else "Nothing to set.", ""])
    rows = [
        (f"`{name}`", f"`{_type(field)}`", f"`{_default(field)}`", _flat(field.description or ""))
        for name, field in own.items()
    ]
    return "\n".join([*lines, table(("setting", "type", "default", "meaning"), rows), ""])


def _type(field: Any) -> str:
    annotation = field.annotation
    text = (
        annotation.__name__ if inspect.isclass(annotation) and not hasattr(annotation, "__args__") else str(annotation)
    )
    text = re.sub(r"\b(typing|pathlib|collections\.abc)\.", "", text)
    limits = [
        f"{sign} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
        if hasattr(bound, name)
    ]
    return f"{text}, {', '.join(limits)}" if limits else text


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    return repr(field.get_default(call_default_factory=True))


# Attacks


def attacks() -> str:
    """A section for every attack: its file's docstring."""
    return "\n".join(_attack_section(name, entry) for name, entry in ATTACKS.items())


def _attack_section(name: str, entry: AttackEntry) -> str:
    text = inspect.getdoc(sys.modules[entry.settings.__module__]) or ""
    lines = [f"## `{name}`", ""]
    for block in text.split("\n\n"):
        indented = all(line.startswith("    ") for line in block.splitlines())
        lines += ["```text", inspect.cleandoc(block), "```", ""] if indented else [_flat(block), ""]
    measured = "Error and attack success rate are measured." if entry.is_backdoor else "The error is measured."
    settings_name = entry.settings.__name__
    return "\n".join([*lines, f"{measured} Settings: [{settings_name}](settings.md#{settings_name.lower()}).", ""])


# Commands


def commands() -> str:
    """Every command with its arguments and options."""
    root = cast(click.Command, typer.main.get_command(cli.app))
    return "\n".join(_command(root, "secureafl", 2))


def _command(command: click.Command, path: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"{'#' * level} `{path}`\n"
    yield f"{_flat(command.help or '')}\n"
    subcommands: Mapping[str, click.Command] = getattr(command, "commands", {})
    pieces = [piece for parameter in command.params for piece in parameter.get_usage_pieces(context)]
    options = ["[OPTIONS]"] if any(parameter.param_type_name == "option" for parameter in command.params) else []
    yield f"```text\n{' '.join([path, *options, *pieces, *(['COMMAND ...'] if subcommands else [])])}\n```\n"
    declared = _declared_help(command)
    rows = [
        _parameter(parameter, context, declared.get(parameter.name or "", ""))
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
    ]
    rows = [row for row in rows if row[0] not in ("`--install-completion`", "`--show-completion`")]
    if rows:
        yield table(("name", "takes", "default", "meaning"), rows) + "\n"
    for name, subcommand in subcommands.items():
        if not subcommand.hidden:
            yield from _command(subcommand, f"{path} {name}", level + 1)


def _declared_help(command: click.Command) -> dict[str, str]:
    """What the command's function says about its parameters: some versions of Click forget it for arguments."""
    if command.callback is None:
        return {}
    found = typer.utils.get_params_from_function(inspect.unwrap(command.callback))
    return {name: getattr(parameter.default, "help", None) or "" for name, parameter in found.items()}


def _parameter(parameter: click.Parameter, context: click.Context, meaning: str) -> tuple[str, str, str, str]:
    is_option = parameter.param_type_name == "option"
    shown = parameter.opts + parameter.secondary_opts if is_option else [parameter.human_readable_name]
    flag = bool(getattr(parameter, "is_flag", False))
    takes = "" if flag or not is_option else f"`{parameter.make_metavar(context)}`"
    default = parameter.default
    text = "" if default is None or flag or callable(default) else f"`{default}`"
    if parameter.name == "jobs":
        text = "one per core"  # not this machine's number
    meaning = _flat(meaning)
    if parameter.required and is_option:
        meaning += " Required."
    if parameter.multiple:
        meaning += " May be repeated." if "repeated" not in meaning and "several times" not in meaning else ""
    return ", ".join(f"`{name}`" for name in shown), takes, text, meaning


# Figures from results/


def tables(name: str) -> str:
    """The tables that `benchmarks/<name>.py` made of what it measured, or how to make them."""
    found = _measured(name)
    if "tables" not in found:
        return f"*Not measured yet: `python benchmarks/{name}.py` writes `results/{name}.json`, shown here.*"
    sections = []
    for made in found["tables"]:
        sections += [f"**{made['title']}**", ""] if made["title"] else []
        sections += [table(tuple(made["columns"]), [tuple(row) for row in made["rows"]]), ""]
    return "\n".join([*sections, _origin(found)])


def figure(name: str) -> str:
    """The figure that `benchmarks/<name>.py` drew, on a page two folders below the root; nothing if there is none."""
    found = _measured(name)
    if "figure" not in found:
        return ""
    says = found["figure"]
    return f"```{{figure}} ../../results/{name}.png\n:alt: {says}\n\n{says}\n```"


def _measured(name: str) -> Mapping[str, Any]:
    path = ROOT / "results" / f"{name}.json"
    return cast(Mapping[str, Any], json.loads(path.read_text())) if path.exists() else {}


def _origin(found: Mapping[str, Any]) -> str:
    return f"`{found['command']}`, seed {found['seed']}, commit {found['commit']}, {found['threads']} threads."


def hospitals() -> str:
    """What three federations of hospitals came to."""
    found = json.loads((ROOT / "results" / "hospitals.json").read_text())
    sizes = found["patients"]
    smallest = min(sizes, key=lambda site: sizes[site])
    rows = []
    for name, job in found["results"].items():
        times = job["shares"].get(smallest, 0.0) * sum(sizes.values()) / sizes[smallest]
        rows.append((name, f"{job['accuracy']:.3f}", f"{times:.2f}"))
    said = f"`{found['command']}` at commit {found['commit']}. Timing varies, so another run differs somewhat."
    return f"{table(('', 'accuracy', 'the smallest hospital, times its weight'), rows)}\n\n{said}"


PARTS: Mapping[str, Callable[[], str]] = {
    **{f"interface-{module}": partial(interface, module) for module in PUBLIC},
    "settings": settings,
    "attacks": attacks,
    "commands": commands,
    **{f"table-{name}": partial(tables, name) for name in BENCHMARKS},
    **{f"figure-{name}": partial(figure, name) for name in BENCHMARKS},
    "hospitals": hospitals,
    **{f"notebook-{name}": partial(notebooks.page, name) for name in NOTEBOOKS},
}
"""What a page may ask for."""


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; a bar within a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _flat(text: str) -> str:
    """A docstring as one paragraph of Markdown: what only Markdown would understand is escaped."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts)
