"""The log as a chain: each row carries the hash of the row before it, and its own.

The first row's predecessor is the hash of the run's facts, so whoever changes a setting, a row, or the order of rows
changes every hash behind it. An update's bytes enter by their own hash and may be forgotten; the row still proves what
they were. A *head* is the newest row's number and hash: it stands for everything before it.

A head is also kept in a file of its own. What happens to SQLite's files cannot reach it, so a log that lost its newest
rows is told from one that never had them.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secureafl.errors import StoreError
from secureafl.files import REAL_DISK, Disk, write_atomically

HEAD = "head"
_SLOT_BYTES = 512  # what a disk writes whole or not at all
_DOMAIN = b"secureafl log 2\0"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest row of a log: its number and its hash."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number} {self.hash.hex()}"


def first_hash(facts: Mapping[str, str]) -> bytes:
    """What the first row carries as the hash before it: that of the facts, as they are stored."""
    return hashlib.sha256(_DOMAIN + json.dumps(sorted(facts.items())).encode()).digest()


def row_hash(before: bytes, stored: tuple[Any, ...]) -> bytes:
    """The hash of a row: of the one before it and of every column as it is stored. TypeError if one is of another type.

    What is hashed is the columns as a JSON list, bytes in hexadecimal. It is put together here because a log has many
    rows, and the library's way takes three times as long.
    """
    number, seconds, version, client, event, reason, accepted, evidence, ticket, base, sent, model = stored
    text = (
        f"[{_int(number)},{_float(seconds)},{_int(version)},{_text(client)},{_text(event)},{_text(reason)},"
        f"{_NULL if accepted is None else _int(accepted)},{_text(evidence)},"
        f"{_NULL if ticket is None else _int(ticket)},{_NULL if base is None else _int(base)},"
        f"{_NULL if sent is None else _hex(sent)},{_NULL if model is None else _hex(model)}]"
    )
    return hashlib.sha256(before + text.encode()).digest()


def _hex(content: bytes) -> str:
    return f'"{bytes.hex(content)}"'


_NULL, _int, _float, _text = "null", int.__repr__, float.__repr__, json.encoder.encode_basestring_ascii


class HeadFile:
    """The head of a run's log, in a file with two places that are written in turn: one of them is always whole."""

    def __init__(self, path: Path, disk: Disk = REAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self._descriptor: int | None = None

    def create(self, head: Head) -> None:
        """Begin with this head."""
        write_atomically(self._path, _slot(head) * 2, self._disk)

    def write(self, head: Head) -> None:
        """Write the head down, durably."""
        if self._descriptor is None:
            self._descriptor = self._disk.open(self._path, os.O_RDWR)
            first, second = _slots(self._path.read_bytes())
            self._place = 1 if second is None or (first is not None and first.number > second.number) else 0
        self._disk.write(self._descriptor, _slot(head), self._place * _SLOT_BYTES)
        self._disk.sync(self._descriptor)
        self._place = 1 - self._place

    def read(self) -> Head:
        """The newest head; `StoreError` if there is none that is whole."""
        try:
            found = [head for head in _slots(self._path.read_bytes()) if head is not None]
        except FileNotFoundError:
            raise StoreError(f"{self._path} is missing: it says how far the log went") from None
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}") from None
        if not found:
            raise StoreError(f"{self._path} is damaged: it no longer says how far the log went")
        return max(found, key=lambda head: head.number)

    def close(self) -> None:
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None


def _slot(head: Head) -> bytes:
    text = f"{head}".encode()
    return f"{head} {zlib.crc32(text):08x}\n".encode().ljust(_SLOT_BYTES)


def _slots(content: bytes) -> tuple[Head | None, Head | None]:
    """What the two places hold; None where a crash or damage left no whole one."""
    first, second = (_parse(content[place * _SLOT_BYTES :][:_SLOT_BYTES]) for place in (0, 1))
    return first, second


def _parse(slot: bytes) -> Head | None:
    try:
        number, digest, _ = slot.decode().split()
        head = Head(int(number), bytes.fromhex(digest))
    except ValueError:
        return None
    return head if slot == _slot(head) else None
