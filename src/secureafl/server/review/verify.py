"""Whether a run's record is whole and as it was written, and a signed head that proves it to others.

A *head*, the newest row's number and hash, stands for all rows before it. Whoever holds the folder could write another
log with hashes that fit. So an operator signs the head now and then and leaves it with somebody else: a log that still
contains that head has not been changed before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secureafl.errors import StoreError, UnreachableError
from secureafl.files import save_json
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.chain import Head
from secureafl.server.record.entries import Event
from secureafl.server.record.run import model_hash
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.record.store import SNAPSHOTS

if TYPE_CHECKING:  # an extra: a log is checked without it, and signed with it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNED = "head.signed"
_DOMAIN = b"secureafl head 1\0"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found whole."""

    head: Head | None
    """None for a log of 0.1, which has no chain."""
    num_rows: int
    num_updates: int
    num_snapshots: int


def verify(place: Place) -> Verified:
    """Read everything of the run there and check it; `StoreError` names the first thing that is not whole."""
    store = store_of(place)
    journal = store.read()
    try:
        head = journal.check()
        num_rows = num_updates = 0
        for entry in journal.entries(payloads=True):
            num_rows += 1
            num_updates += entry.payload is not None
        snapshots = Snapshots(store.files)
        if model_hash(snapshots.read_first()).hex() != journal.facts()["first model"]:
            raise StoreError(f"the run's first model in {store.files.where(SNAPSHOTS)} is not the one it began with")
        num_snapshots = sum(_is_kept(snapshots, version, sha256) for version, _, sha256 in journal.snapshots())
    finally:
        journal.close()
    return Verified(head, num_rows, num_updates, num_snapshots)


def _is_kept(snapshots: Snapshots, version: int, sha256: str) -> bool:
    """Whether a snapshot on record is there, and whole; a live server may remove it while it is read."""
    if not snapshots.has(version):
        return False
    try:
        snapshots.read(version, sha256)
    except UnreachableError:
        raise
    except StoreError:
        if snapshots.has(version):
            raise
        return False
    return True


def accept_loss(place: Place) -> None:
    """Let the log end where it ends, although newer rows are lost, and write that down."""
    store = store_of(place)
    store.require_run()
    hold = store.hold()
    try:
        store.open(accept_loss=True).close()
    finally:
        hold.release()


def signed_file(place: Place) -> Path:
    """Where the signed head of a run goes: into its folder; into the present one if the run is in a database."""
    return place / SIGNED if isinstance(place, Path) else Path(f"{place.name}.{SIGNED}")


def sign(place: Place, key: Ed25519PrivateKey) -> Path:
    """Sign the run's head; returns the file to be left with somebody else."""
    head = _checked_head(place)
    signed = signed_file(place)
    save_json(signed, {"number": head.number, "hash": head.hash.hex(), "signature": key.sign(_statement(head)).hex()})
    return signed


def verify_signed(place: Place, signed: Path, key: Ed25519PublicKey) -> Head:
    """The head that was signed with this key, if the run's log still contains it."""
    from cryptography.exceptions import InvalidSignature

    try:
        said = json.loads(signed.read_text())
        head = Head(int(said["number"]), bytes.fromhex(said["hash"]))
        key.verify(bytes.fromhex(said["signature"]), _statement(head))
    except OSError as error:
        raise StoreError(f"cannot read the signed head {signed}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StoreError(f"{signed} is no signed head") from None
    except InvalidSignature:
        raise StoreError(f"{signed} was not signed with this key, or was changed") from None
    if not _contains(place, head):
        raise StoreError(f"{place} was changed: its row {head.number} is not the one that was signed")
    return head


def _checked_head(place: Place) -> Head:
    journal = store_of(place).read()
    try:
        head = journal.check()
    finally:
        journal.close()
    if head is None:
        raise StoreError(f"{place} was written by 0.1 and has no chain: resume it once to give it one")
    return head


def _contains(place: Place, head: Head) -> bool:
    """Whether this is a row of the run's log, which was checked from end to end."""
    journal = store_of(place).read()
    try:
        newest = journal.check()
        if newest == head:
            return True
        if journal.hash_before(head.number + 1) == head.hash:
            return True
        forgotten = ((entry.base, entry.reason) for entry in journal.entries(Event.FORGOTTEN))
        return (head.number, head.hash.hex()) in forgotten
    finally:
        journal.close()


def _statement(head: Head) -> bytes:
    return _DOMAIN + str(head).encode()
