"""Move a run from one place to another, row by row and byte by byte: the chain is followed on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from secureafl.errors import StoreError
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.store import MODEL, SNAPSHOTS, Files
from secureafl.server.review.verify import Verified, verify

FILES = (f"{SNAPSHOTS}/*.safetensors", MODEL)
PIECE_BYTES = 4 << 20


def copy(source: Place, target: Place) -> Verified:
    """Copy the run, and check the copy; `source` stays as it is. A copy that fails leaves no run in `target`."""
    origin, goal = store_of(source), store_of(target)
    origin.require_run()
    if origin.is_held():
        raise StoreError(f"{source} is in use: stop its server first, so that the copy is whole")
    journal = origin.read()
    try:
        head = journal.check()
        if head is None:
            raise StoreError(f"{source} was written by 0.1 and has no chain: resume it once to give it one")
        hold = goal.hold()
        try:
            goal.clear()
            try:
                _copy_files(origin.files, goal.files)
            except OSError as error:
                raise StoreError(f"cannot copy the files of {source}: {error.strerror or error}") from None
            copied = goal.create(journal.facts())
            try:
                copied.load(journal)
            finally:
                copied.close()
        finally:
            hold.release()
    finally:
        journal.close()
    found = verify(target)
    if found.head != head:
        raise StoreError(f"{target} is no copy of {source}: its head is {found.head}, not {head}")
    return found


def _copy_files(source: Files, target: Files) -> None:
    for pattern in FILES:
        for name in source.names(pattern):
            with source.local(name) as path:
                target.write(name, _pieces(path))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
