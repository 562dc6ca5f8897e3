"""The base of every configuration class: frozen, keyword-only, and an unknown key is an error."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from secureafl.errors import SettingsError, UnknownSettingError


class Settings(BaseModel):
    """Immutable settings. An unknown key or a value out of bounds raises an error that says what to write."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    earlier_names: ClassVar[Mapping[str, str]] = {}
    """Names of earlier versions, which are still read, and what they are called now."""

    @classmethod
    def renamed(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings under the names of this version."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = cls.earlier_names.get(key, key)
            if name in found:
                raise SettingsError(f"{name} is given twice, once under its earlier name: give one of the two")
            found[name] = value
        return found

    @classmethod
    def recorded(cls, given: Mapping[str, Any]) -> Self:
        """Settings as an earlier version recorded them, who took more than this one does."""
        return cls(**given)

    @model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            data = cls.renamed(data)
            for key in data:
                if key not in cls.model_fields:
                    raise UnknownSettingError(_unknown(cls.__name__, str(key), list(cls.model_fields)))
        try:
            return handler(data)
        except ValidationError as error:
            raise SettingsError(_invalid(cls.__name__, error)) from None


def nearest(word: str, known: list[str]) -> str:
    """`did you mean 'x'?`, or the list of what exists when nothing comes close."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"it knows: {', '.join(known) or 'none'}"


def read_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Settings from `key=value` and `part.key=value`: JSON where the value is JSON, text where not."""
    given: dict[str, Any] = {}
    for text in texts:
        path, equals, written = text.partition("=")
        if not equals or not path:
            raise SettingsError(f"{text!r} is no setting: write KEY=VALUE")
        try:
            value = json.loads(written)
        except json.JSONDecodeError:
            value = written
        given[path.replace("-", "_")] = value
    return nested(given)


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of parts, `part.key`, in a dictionary for each part."""
    settings: dict[str, Any] = {}
    for path, value in given.items():
        *parts, key = path.split(".")
        place = settings
        for part in parts:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise SettingsError(f"{path}={value}: {part} was given a value of its own before")
        place[key] = value
    return settings


def _unknown(owner: str, key: str, known: list[str]) -> str:
    return f"{owner} has no setting {key!r}; {nearest(key, known)}"


def _invalid(owner: str, error: ValidationError) -> str:
    faults = [f"{'.'.join(map(str, e['loc'])) or 'settings'} = {e['input']!r}: {e['msg']}" for e in error.errors()]
    return f"{owner}: " + "; ".join(faults)


def flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Tables within tables as one: `outer.inner`."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
