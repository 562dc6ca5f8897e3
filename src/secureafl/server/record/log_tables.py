"""What a journal needs of a database: a few tables, whose SQL most databases share.

    log       one row for each event; `COLUMNS` says what is in it
    updates   what clients sent, float32 or compressed as `wire` says, by number of its row
    facts     what was in force when the run began, name and JSON

The newest row's number and hash, the head, is kept apart from the rows: what happens to them cannot reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from secureafl.server.record.chain import Head

Row: TypeAlias = tuple[Any, ...]

SAID = "number, seconds, version, client, event, reason, accepted, evidence, ticket, base"
COLUMNS = f"{SAID}, sent, model, before, hash"


class Tables(Protocol):
    """The tables of one run in one database. Statements have `?` where a parameter goes."""

    @property
    def where(self) -> str:
        """The database, as messages name it."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the database's driver raises."""

    def is_unreachable(self, error: Exception) -> bool:
        """Whether this error of the driver says only that the database cannot be reached just now."""

    @property
    def waiting(self) -> bool:
        """Whether `read` does not show some changes, because they wait for `commit`."""

    def create(self, facts: Mapping[str, str]) -> None:
        """Make the tables of a new run, durably."""

    def prepare(self) -> None:
        """Before an earlier server's run is gone on with: bring its tables into the present format."""

    def insert(self, row: Row, update: bytes | None) -> None:
        """Add a row, and the update that came with it, to the next commit. The row is the new head."""

    def load(self, rows: Iterable[tuple[Row, bytes | None]]) -> None:
        """Insert rows of another log, and make them durable, at once or not at all."""

    def change(self, statement: str, parameters: Sequence[Any]) -> None:
        """Add a change of the tables to the next commit."""

    def forget_updates(self, up_to: int) -> None:
        """Add to the next commit that the updates of rows up to this number go."""

    def commit(self) -> None:
        """Make what was inserted and changed durable, all or nothing, and then the head."""

    def rollback(self) -> None:
        """Drop what was not committed, as far as the database can still be reached."""

    def settle(self) -> None:
        """See to it that nothing that was committed is left where a crash could take it."""

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Every row that answers the query."""

    def read_update(self, number: int) -> bytes | None:
        """The update of this row; None if there is none. `StoreError` if it is not what was written."""

    def update_bytes(self) -> int:
        """Bytes of updates kept."""

    def read_head(self) -> Head:
        """The head, as it is kept apart from the rows."""

    def write_head(self, head: Head) -> None:
        """Let this be the head, whichever it was."""

    def close(self) -> None:
        """Let go of the database."""
