"""The objects that rows of a run in a database name, and those that no row names any more: these stay in the table
`discarded` until they are removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from secureafl.errors import StoreError, UnreachableError
from secureafl.server.record.lease import Database
from secureafl.server.record.objects import FILES, UPDATES, Objects, epoch_of, update_name

RETRY_SECONDS = 0.2
_DISCARD = (
    "WITH gone AS ({} RETURNING object)"
    " INSERT INTO discarded SELECT object FROM gone WHERE object IS NOT NULL ON CONFLICT DO NOTHING"
)
DISCARD_UPDATES = _DISCARD.format("DELETE FROM updates WHERE number <= %s")
DISCARD_FILE = _DISCARD.format("DELETE FROM files WHERE name = %s")
Result = TypeVar("Result")


def write_object(objects: Objects, name: str, content: BinaryIO) -> None:
    """Write an object, from the start of a file."""
    content.seek(0)
    objects.write(name, content)


def remove_discarded(objects: Objects, database: Database, epoch: int) -> None:
    """Remove the objects that no row names any more, for the leader of this epoch, or for one that it has followed:
    those of a later leader are not touched.
    """
    found = [name for (name,) in database.execute("SELECT object FROM discarded").fetchall()]
    names = [name for name in found if epoch_of(name) <= epoch]
    if names:
        objects.remove(names)
        database.execute("DELETE FROM discarded WHERE object = ANY(%s)", [names])


def remove_orphans(objects: Objects, database: Database, epoch: int, newest_row: int) -> None:
    """Remove what earlier leaders wrote and never came to name: the leader of this epoch has seen that they cannot."""
    remove_discarded(objects, database, epoch)
    named = {name for (name,) in database.execute("SELECT object FROM files WHERE object IS NOT NULL").fetchall()}
    found = objects.names(UPDATES, after=f"{update_name(newest_row)}/")  # which sorts behind all of that row
    found += [name for name in objects.names(FILES) if name not in named]
    objects.remove([name for name in found if epoch_of(name) < epoch])


def patiently(call: Callable[[], Result], patience: float, error: type[OSError] = OSError) -> Result:
    """Try again after such an error, for so many seconds."""
    ends = time.monotonic() + patience
    while True:
        try:
            return call()
        except error:
            if time.monotonic() >= ends:
                raise
            time.sleep(RETRY_SECONDS)


@contextlib.contextmanager
def explained(where: str, done: str) -> Iterator[None]:
    """What cannot be `done` is said in our words."""
    try:
        yield
    except OSError as error:
        kind = UnreachableError if isinstance(error, ConnectionError) else StoreError
        raise kind(f"the run's objects in {where} cannot be {done}: {error.strerror}") from None
