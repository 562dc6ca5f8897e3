"""What an operator calls the clients: an engine may know them by numbers only, as Flower does.

A TOML file says it, `"7345310127518283649" = "hospital-a"`. A server with the setting `names_file` keeps a copy with
the run; otherwise the operator puts `names.toml` into the run's folder, or names a file to whoever looks. Names are for
people: journals, keys and verdicts go by the client's own id.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from secureafl.errors import SettingsError
from secureafl.server.record.store import Store
from secureafl.settings import nearest
from secureafl.text import name_fault, visible

NAMES = "names.toml"
MAX_LISTED = 20  # in a message


class ClientNames:
    """The operator's names by client; none for a client that the file does not list."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = dict(names or {})

    def __bool__(self) -> bool:
        return bool(self._names)

    def get(self, client: str) -> str | None:
        """The client's name, if it has one."""
        return self._names.get(client)

    def shown(self, client: str) -> str:
        """The client as people see it: its name, or its id."""
        return visible(self._names.get(client, client))

    def contain(self, client: str, text: str) -> bool:
        """Whether the client's id or its name holds this text, in small letters."""
        if client not in self._names and client.isprintable():  # nearly all of many: shown as it is
            return text in client.lower()
        return text in client.lower() or text in self.shown(client).lower()

    def shown_with_id(self, client: str) -> str:
        """The same with the id behind the name."""
        name = self._names.get(client)
        return visible(client) if name is None else f"{visible(name)} ({visible(client)})"

    def find(self, text: str, clients: Collection[str], where: str) -> str:
        """The client that this text names: its id, its name, or the beginning of either that no other one shares."""
        if text in clients:
            return text
        called = {client: {client, visible(client), self._names.get(client, client)} for client in clients}
        whole = [client for client, words in called.items() if text in words]
        begun = [client for client, words in called.items() if any(word.startswith(text) for word in words)]
        for found in (whole, begun):
            if len(found) == 1:
                return found[0]
            if found:
                raise SettingsError(
                    f"{visible(text)} may be any of {self._listed(found)}: write more of the one you mean"
                )
        known = [self.shown(client) for client in clients]
        hint = nearest(text, known) if len(known) > MAX_LISTED else f"it has {self._listed(clients)}"
        raise SettingsError(f"{where} knows no client {visible(text)}; {hint}")

    def _listed(self, clients: Iterable[str]) -> str:
        words = sorted(map(self.shown_with_id, clients))
        more = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
        return ", ".join(words[:MAX_LISTED]) + more


def read_names(path: Path) -> ClientNames:
    """The names in a file; SettingsError says what is wrong with it."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read clients' names from {path}: {error}") from None
    owner: dict[str, str] = {}
    for client, name in entries.items():
        if not isinstance(name, str) or (fault := name_fault(name)):
            wrong = fault if isinstance(name, str) else f'{name!r} is no text: write "{client}" = "a name"'
            raise SettingsError(f"{path}: the name of {visible(client)}: {wrong}")
        if name in owner:
            raise SettingsError(f"{path}: {visible(owner[name])} and {visible(client)} are both called {visible(name)}")
        owner[name] = client
    return ClientNames(entries)


def names_of(store: Store, given: Path | None = None) -> ClientNames:
    """The names in the given file; without one, those that are kept with the run."""
    if given is not None:
        return read_names(given)
    try:
        if not store.files.names(NAMES):
            return ClientNames()
        with store.files.local(NAMES) as path:
            return read_names(path)
    except OSError:
        return ClientNames()
