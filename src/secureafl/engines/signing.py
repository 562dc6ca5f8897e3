"""Signed updates: proof that an update was made by the holder of a key, for one assignment only.

An engine may let one participant update in another's name. A signature over the assignment's nonce, its version and
the update's bytes cannot be made without the key, nor used for another assignment. Ed25519, via `cryptography`.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from secureafl.errors import SettingsError
from secureafl.files import create_private

_LOG = logging.getLogger(__name__)
DOMAIN = b"secureafl answer v1\0"
"""What a signature is for. An update was an answer in 0.1: clients that sign with 0.1 are understood."""

PublicKeys: TypeAlias = Mapping[str, Ed25519PublicKey]
"""Client name -> the key its updates must be signed with."""

Part: TypeAlias = tuple[str, str, tuple[int, ...], bytes]
"""One named array as it travels: name, dtype, shape, bytes."""


def digest(parts: Iterable[Part]) -> bytes:
    """A hash over named arrays, independent of their order; no two different sets of arrays share their input."""
    total = hashlib.sha256()
    for name, dtype, shape, data in sorted(parts):
        for text in (name, dtype, ",".join(map(str, shape))):
            encoded = text.encode()
            total.update(len(encoded).to_bytes(8, "big") + encoded)
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.digest()


def sign(key: Ed25519PrivateKey, nonce: bytes, version: int, update_digest: bytes) -> bytes:
    """The client's side."""
    return key.sign(_statement(nonce, version, update_digest))


def verify(key: Ed25519PublicKey, signature: bytes, nonce: bytes, version: int, update_digest: bytes) -> bool:
    """The server's side: whether the holder of `key` signed this update for this assignment."""
    try:
        key.verify(signature, _statement(nonce, version, update_digest))
    except InvalidSignature:
        return False
    return True


def write_key_pair(private: Path) -> str:
    """Make a key in `private` (PEM, readable by its owner only) and return the public half as text for `read_keys`.

    A file that exists is never overwritten: a key that is lost cannot be made again.
    """
    key = Ed25519PrivateKey.generate()
    try:
        create_private(private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except FileExistsError:
        raise SettingsError(
            f"{private} exists, and a key is never overwritten: name another file, or move this one away first"
        ) from None
    except OSError as error:
        raise SettingsError(f"cannot write a signing key to {private}: {error.strerror or error}") from None
    return base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """A client's key, as `write_key_pair` wrote it."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read a signing key from {path}: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path} holds a key of another kind; signing needs Ed25519")
    return key


def read_public_key(text: str) -> Ed25519PublicKey:
    """A public key as `write_key_pair` returns it."""
    try:
        return _public_key(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a base64 Ed25519 public key") from None


def _public_key(text: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))


def read_keys(path: Path) -> PublicKeys:
    """The server's list: a TOML file with one `client = "base64 public key"` per line."""
    try:
        entries = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read public keys from {path}: {error}") from None
    keys: dict[str, Ed25519PublicKey] = {}
    for client, text in entries.items():
        try:
            keys[client] = _public_key(text)
        except (ValueError, TypeError):
            raise SettingsError(f"{path}: the key of client {client!r} is not a base64 Ed25519 public key") from None
    return keys


class KeysFile:
    """The server's list, in a file that may change while the server runs: who is taken off it is refused at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _version_of(path)
        self._keys = read_keys(path)

    def get(self, client: str) -> Ed25519PublicKey | None:
        """The key that this client's updates must be signed with now. A new list that cannot be read changes nothing,
        and is said in the log.
        """
        if (now := _version_of(self._path)) != self._seen:
            self._seen = now
            try:
                self._keys = read_keys(self._path)
            except SettingsError as error:
                _LOG.warning("%s; the keys read before stay in force", error)
        return self._keys.get(client)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    """Another one once the file was written or replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _statement(nonce: bytes, version: int, update_digest: bytes) -> bytes:
    return DOMAIN + len(nonce).to_bytes(8, "big") + nonce + version.to_bytes(8, "big") + update_digest
