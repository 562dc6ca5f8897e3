"""Code of the user's own, by name: `module:Name`, or the name under which an installed package offers it.

A package offers a defense or an attack as an entry point of the group `secureafl.defenses` or `secureafl.attacks`.
What was typed into a notebook or a script is called `__main__:Name`, and only its own process knows it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any

from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.settings import Settings, nearest

REMEDY = "run the command in the folder that holds it, put it into the app that runs, or install it"
"""What helps against a module that is not found."""


MAIN = "__main__"
"""The module of what has no module to import: a notebook's cells, a script, a class inside a function."""

_held: dict[str, object] = {}
"""Objects of this process, by the names that `hold` gave them."""


def hold(given: object) -> str:
    """A name under which this process finds the object: `module:Name` if it can be imported, else `__main__:Name`."""
    named = given if hasattr(given, "__qualname__") else getattr(given, "make", type(given))
    label = str(getattr(named, "__qualname__", type(named).__name__)).rpartition(".")[2].strip("<>")
    module = getattr(given, "__module__", MAIN)
    if module != MAIN and given is named and getattr(sys.modules.get(module), label, None) is given:
        return f"{module}:{label}"
    name = f"{MAIN}:{label}"
    _held[name] = given
    return name


def find_own(kind: str, name: str, known: Collection[str]) -> Any:
    """The user's own object called `name`; `kind` is `defense` or `attack`, and `known` are the built-in names."""
    if ":" in name:
        return load_object(name)
    offered = installed(kind)
    if name in offered:
        return load_object(offered[name])
    colon = f"; for one of your own, write {name.replace('.', ':', 1)} with a colon" if name.count(".") == 1 else ""
    raise UnknownSettingError(f"there is no {kind} {name!r}; {nearest(name, [*known, *offered])}{colon}")


@functools.cache
def installed(kind: str) -> Mapping[str, str]:
    """What installed packages offer: `module:Name` by entry point."""
    found: dict[str, str] = {}
    for point in entry_points(group=f"secureafl.{kind}s"):
        if found.setdefault(point.name, point.value) != point.value:
            raise SettingsError(
                f"two packages offer {kind} {point.name!r}: uninstall one, {found[point.name]} or {point.value}"
            )
    return found


def load_object(name: str, remedy: str = REMEDY) -> Any:
    """What `module:Name` names; `remedy` is what helps if there is no such module."""
    if name in _held:
        return _held[name]
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise SettingsError(f"{name!r} names nothing: write module:Name")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise SettingsError(f"{name}: there is no module {error.name!r}; {remedy}") from error
        raise SettingsError(f"{name}: importing {module_name} failed: {_where(error)}") from error
    if module_name == MAIN and not hasattr(module, attribute):
        raise SettingsError(f"{name} was defined in another process: save it in a module, and name that")
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        place = getattr(module, "__file__", None) or module_name
        raise SettingsError(f"{name}: {place} has no {attribute!r}; {nearest(attribute, public)}")
    return getattr(module, attribute)


def require_class(name: str, found: object, kind: str, methods: Sequence[str]) -> type[Any]:
    """The class, if it has these methods; an error says what is missing."""
    if not inspect.isclass(found):
        raise SettingsError(
            f"{name} is a {type(found).__name__}, and no {kind}: name a class with {', '.join(methods)}, or "
            f"{'an' if kind[0] in 'aeiou' else 'a'} {kind.capitalize()}Entry"
        )
    if missing := [method for method in methods if not callable(getattr(found, method, None))]:
        raise SettingsError(f"{name} is no {kind}: add the method{'s' * (len(missing) > 1)} {', '.join(missing)} to it")
    return found


def read_constructor(
    name: str, found: type[Any], *, first: Sequence[str] = (), given: Sequence[str] = ()
) -> tuple[type[Settings], tuple[str, ...]]:
    """The settings class of a constructor, and which of the arguments in `given` it takes.

    `first` are arguments that come before. `Settings` itself stands for a constructor that takes no settings.
    """
    parameters = [one for one in inspect.signature(found).parameters.values() if one.kind not in _VARIABLE]
    wanted = ", ".join([*first, "settings=MySettings()", *given])
    if len(parameters) < len(first):
        raise SettingsError(f"{name}: its constructor must take {', '.join(first)}; it may take {wanted}")
    settings: type[Settings] = Settings
    needs = []
    for place, parameter in enumerate(parameters[len(first) :]):
        if parameter.name == "settings":
            if place > 0 or not isinstance(parameter.default, Settings):
                raise SettingsError(
                    f"{name}: its constructor must take {', '.join([*first, 'settings=MySettings()'])} in this order, "
                    "where MySettings inherits from secureafl.settings.Settings"
                )
            settings = type(parameter.default)
        elif parameter.name in given:
            needs.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise SettingsError(f"{name}: its constructor asks for {parameter.name!r}; it may take {wanted}")
    return settings, tuple(needs)


def source_digest(found: object) -> str:
    """SHA-256 of the file that defines it, as it was when this process first asked; of its compiled code, if it was
    typed into an interpreter.
    """
    file = source_file(found)
    return hashlib.sha256(_compiled(found)).hexdigest() if file is None else file_digest(file)


def source_file(found: object) -> Path | None:
    """The file that defines a class or a function; None for what was typed into an interpreter, and for what was made
    while a program ran: the file does not say what is in it.
    """
    if "<" in getattr(found, "__qualname__", "<object>"):  # made in a function: <locals>, <lambda>
        return None
    try:
        file = inspect.getsourcefile(found)  # type: ignore[arg-type]  # what has no source raises an error
    except (TypeError, OSError):
        return None
    return Path(file) if file and Path(file).exists() else None


@functools.cache
def file_digest(path: Path) -> str:
    """SHA-256 of a file, read once: a module is not imported again either when its file changes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compiled(found: object) -> bytes:
    """What tells one version of typed code from the next: instructions, constants and names, with those of its parts.
    What it calls outside of itself is not in it.
    """
    if isinstance(found, CodeType):
        constants = b"".join(map(_compiled, found.co_consts))
        return found.co_code + constants + repr((found.co_names, found.co_varnames)).encode()
    if inspect.isclass(found):
        members = [value for _, value in sorted(vars(found).items()) if inspect.isroutine(value)]
        typed = [base for base in found.__bases__ if base.__module__ == MAIN]
        return found.__qualname__.encode() + b"".join(map(_compiled, [*members, *typed]))
    if inspect.isfunction(found):
        return _compiled(found.__code__) + repr(found.__defaults__).encode()
    return repr(getattr(found, "__dict__", found)).encode()


_VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def _where(error: Exception) -> str:
    """The error, and the line that raised it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # it names the line itself
        return said
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{said} ({last.filename}, line {last.lineno})"
