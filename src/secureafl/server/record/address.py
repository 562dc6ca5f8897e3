"""How a run is named: a folder, or `postgresql://USER@HOST:PORT/DATABASE/RUN`.

The last part of such a URL is the run's own name, so that one database holds many runs. All before it, and what follows
a `?`, is what PostgreSQL's own tools take. A password in it is never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import PlainSerializer, PlainValidator

from secureafl.errors import SettingsError
from secureafl.server.record.folder import FolderStore
from secureafl.server.record.objects import parse_objects
from secureafl.server.record.store import Store

LEASE_SECONDS = 10.0
_SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")


@dataclass(frozen=True, slots=True)
class RunUrl:
    """A run in a PostgreSQL database."""

    name: str
    """The run's own name."""
    database: str = field(repr=False)
    """The database, as PostgreSQL's tools take it; it may hold a password."""
    shown: str
    """The whole, without a password and what follows a `?`."""
    objects: str | None = None
    """Where the updates and files of a run that begins here are kept; None for the database itself. A run that has
    begun knows it."""

    @classmethod
    def parse(cls, text: str) -> RunUrl:
        """Read such a URL; SettingsError says what is wrong with it."""
        parts = urlsplit(text, allow_fragments=False)
        database, _, name = parts.path.strip("/").rpartition("/")
        user, at, hosts = parts.netloc.rpartition("@")
        address = f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}"
        if not database or "/" in database:
            raise SettingsError(f"{address}{parts.path} names no run: write {address}/DATABASE/RUN")
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{unquote(name)!r} is no name for a run: write up to 50 letters, digits, '.', '_' or '-',"
                " a letter or a digit first"
            )
        query = f"?{parts.query}" if parts.query else ""
        return cls(name, f"{parts.scheme}://{parts.netloc}/{database}{query}", f"{address}/{database}/{name}")

    def __str__(self) -> str:
        return self.shown


Place: TypeAlias = Path | RunUrl
"""Where a run is kept."""


def parse_place(named: object) -> Place:
    """The place that a text names; what is one already stays as it is."""
    if isinstance(named, Path | RunUrl):
        return named
    if not isinstance(named, str):
        raise ValueError("a run is named by its folder or its URL")
    scheme, separator, _ = named.partition("://")
    if not separator:
        return Path(named)
    if scheme not in _SCHEMES:
        raise SettingsError(f"no run can be kept in {scheme}: name a folder, or postgresql://USER@HOST/DATABASE/RUN")
    return RunUrl.parse(named)


def with_objects(place: Place, objects: str | None) -> Place:
    """The same place, for a run whose updates and files are kept in `objects`."""
    if objects is None:
        return place
    if isinstance(place, Path):
        raise SettingsError(f"objects = {objects!r} is for a run in a database, and {place} is a folder: leave it out")
    return replace(place, objects=parse_objects(objects))


PlaceSetting = Annotated[Place, PlainValidator(parse_place), PlainSerializer(str)]
"""A place as a setting: written as a text, and shown without a password."""


def store_of(place: Place, *, lease_seconds: float = LEASE_SECONDS, patience: float = 0.0) -> Store:
    """The run that is kept there, or is to be. `lease_seconds` and `patience` are for a database."""
    if isinstance(place, Path):
        return FolderStore(place)
    try:
        from secureafl.server.record.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise SettingsError(f'{place} needs one more package: pip install "secureafl[postgres]"') from None
    return PostgresStore(place, lease_seconds=lease_seconds, patience=patience)
