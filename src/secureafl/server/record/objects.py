"""Where a run in a database keeps the bytes of its updates and files if not in the database: a folder, or a bucket.

An object is durable before the row that names it is written, and removed after that row is gone. Its name is
`NAME.EPOCH.SHA256`: only the leader of that epoch writes it, so that an earlier leader that wakes up late can remove no
object that a row names. What is read is compared with the hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Protocol

from pydantic import AfterValidator

from secureafl.errors import SettingsError
from secureafl.files import REAL_DISK, remove_leftovers, write_atomically

PIECE_BYTES = 1 << 20
UPDATES = "updates/"
FILES = "files/"
_RESTORE = "restore it from a backup, or from an older version of the object"


class AlteredError(OSError):
    """An object is not what was written."""


class Objects(Protocol):
    """Objects by name, in one place. Errors are OSErrors: `ConnectionError` if the place cannot be reached just now,
    `FileNotFoundError` if it can and the object is not there.
    """

    @property
    def where(self) -> str:
        """The place, as messages name it."""

    def prepare(self) -> None:
        """Make the place, for a new run."""

    def reach(self) -> None:
        """Raise if the place cannot be reached."""

    def write(self, name: str, content: BinaryIO) -> None:
        """Write an object, from a file at its start; it is durable when this returns."""

    def read(self, name: str) -> Iterator[bytes]:
        """The object's bytes, in pieces."""

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Names of the objects that begin so and come after this text, sorted."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""


def parse_objects(text: str) -> str:
    """The place that a text names; SettingsError says what is wrong with it."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "s3":
        raise SettingsError(
            f"objects = {text!r}: no objects can be kept in {scheme}: write s3://BUCKET/PREFIX or a folder"
        )
    if separator and not rest.strip("/"):
        raise SettingsError(f"objects = {text!r} names no bucket: write s3://BUCKET/PREFIX")
    if not separator and not Path(text).is_absolute():
        raise SettingsError(
            f"objects = {text!r}: write the whole path, which every server and reader of the run can reach"
        )
    return text.rstrip("/")


ObjectsSetting = Annotated[str, AfterValidator(parse_objects)]
"""Such a place as a setting."""


def objects_at(location: str) -> Objects:
    """The objects in `s3://BUCKET/PREFIX`, or in a folder."""
    if not location.startswith("s3://"):
        return FolderObjects(Path(location))
    try:
        from secureafl.server.record.s3 import S3Objects
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise SettingsError(f'{location} needs one more package: pip install "secureafl[s3]"') from None
    return S3Objects(location)


def object_name(name: str, epoch: int, sha256: str) -> str:
    """The object that the leader of this epoch writes."""
    return f"{name}.{epoch}.{sha256}"


def update_name(number: int) -> str:
    """What the names of objects with the update in this row begin with. They sort by number."""
    return f"{UPDATES}{number:012d}"


def epoch_of(name: str) -> int:
    """Whose object it is."""
    return int(name.rsplit(".", 2)[1])


def checked(objects: Objects, name: str) -> Iterator[bytes]:
    """The object's bytes, in pieces. An error at the end if they are not what was written."""
    total = hashlib.sha256()
    try:
        for piece in objects.read(name):
            total.update(piece)
            yield piece
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"its object {objects.where}/{name} is gone: {_RESTORE}") from None
    if total.hexdigest() != name.rpartition(".")[2]:
        said = f"its object {objects.where}/{name} is not what was written, its hash does not match: {_RESTORE}"
        raise AlteredError(errno.EIO, said)


class FolderObjects:
    """Objects as files in a folder that every server and reader of the run can reach."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        return str(self._folder)

    def prepare(self) -> None:
        for folder in (self._folder, self._folder / UPDATES, self._folder / FILES):
            _make(folder)

    def reach(self) -> None:
        if not self._folder.is_dir():
            raise ConnectionError(errno.ENOENT, f"the folder {self._folder} is not there: mount it, or restore it")

    def write(self, name: str, content: BinaryIO) -> None:
        self.reach()  # where nothing is mounted, nothing is written
        path = self._folder / name
        _make(path.parent)
        write_atomically(path, iter(partial(content.read, PIECE_BYTES), b""))

    def read(self, name: str) -> Iterator[bytes]:
        try:
            file = (self._folder / name).open("rb")
        except FileNotFoundError:
            self.reach()
            raise
        with file:
            yield from iter(partial(file.read, PIECE_BYTES), b"")

    def names(self, prefix: str, after: str = "") -> list[str]:
        """What a writer that was killed left half-written is removed."""
        found = []
        for folder, _, files in os.walk(self._folder / prefix):
            remove_leftovers(Path(folder))
            below = PurePosixPath(Path(folder).relative_to(self._folder).as_posix())
            found += [str(below / file) for file in files if not file.startswith(".")]
        return sorted(name for name in found if name > after)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            REAL_DISK.remove(self._folder / name)


def _make(folder: Path) -> None:
    """A folder that a crash does not take, with those it lies in."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    REAL_DISK.sync_directory(folder.parent)
