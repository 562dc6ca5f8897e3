"""The journal: everything that happened in a run, in order, in a database anyone can open.

It is at once the audit trail (who was accepted, and why not), the write-ahead log that a crashed server resumes from,
and a record that can be replayed. A row that a client may come to know of is durable before it does. Rows are a chain:
`chain` says how damage is found. The first write that fails is the last one: from then on the journal refuses all.

Here is what all databases have in common. What differs is behind `Tables`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from secureafl.errors import StoreError, UnreachableError
from secureafl.server.record.chain import Head, first_hash, row_hash
from secureafl.server.record.entries import RENAMED_REASONS, Entry, Event
from secureafl.server.record.log_tables import COLUMNS, Row, Tables
from secureafl.text import one_line
from secureafl.types import UNJUDGED

FORMAT = 2
"""Of the tables. 0.1 wrote format 1, which has no chain and holds updates in the rows themselves."""
COMPRESSED_FORMAT = 3
"""Of a run whose clients may send compressed updates: the same tables, but 0.2 cannot read such updates."""

_MISSING_UPDATE = (
    "SELECT min(number), (SELECT max(number) FROM log) FROM log WHERE sent IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM updates WHERE updates.number = log.number)"
    " AND number > (SELECT coalesce(max(base), 0) FROM log WHERE event = ?)"
)
_BATCH = 500
Result = TypeVar("Result")


class Journal:
    """Appends entries and reads them back; safe to use from several threads."""

    _rows_query = f"SELECT {COLUMNS} FROM log"
    _without_update = "NOT EXISTS (SELECT 1 FROM updates WHERE updates.number = log.number)"

    def __init__(self, tables: Tables) -> None:
        """The journal in these tables, to be read."""
        self._tables = tables
        self.where = tables.where
        self._unwritable: tuple[type[Exception], ...] = (*tables.errors, OSError)
        self._unreadable: tuple[type[Exception], ...] = (*tables.errors, UnicodeDecodeError, OverflowError)
        self._lock = threading.Lock()
        self._failure: StoreError | None = None
        self._snapshots: list[tuple[int, int, str]] | None = None
        self.seconds = 0.0  # of the newest row, once the log was checked
        self.forgotten = 0  # the newest row that was forgotten, once the log was checked
        self._checked = 0  # the newest row up to which the chain was followed
        self._updates_checked = 0  # up to which a missing update was forgotten

    @classmethod
    def begin(cls, tables: Tables, texts: Mapping[str, str]) -> Journal:
        """A new journal of a run that these facts describe, as `fact_texts` wrote them."""
        journal = cls(tables)
        journal._head = Head(0, first_hash(texts))
        journal._snapshots = []
        with opening(tables), journal._writing():
            tables.create(texts)
        return journal

    @classmethod
    def resume(cls, tables: Tables, *, accept_loss: bool = False, known: Head | None = None) -> Journal:
        """The journal of an earlier server, to be gone on with. It has been checked from end to end; from `known` on if
        the caller has followed the chain up to there itself.

        `accept_loss` takes a log whose newest rows are lost, and writes down that they are.
        """
        journal = cls(tables)
        with opening(tables):
            tables.prepare()
            journal._check_format()
            if accept_loss:
                journal._accept_loss()
            journal._head = journal._check_chain() if known is None else journal._check_since(known)
            tables.settle()
        return journal

    @classmethod
    def reading(cls, tables: Tables) -> Journal:
        """The journal of a run that may be live, to be read only: the database is never written."""
        journal = cls(tables)
        with opening(tables):
            journal._check_format()
        journal._failure = StoreError(f"the run's database {tables.where} was opened to be read")
        return journal

    def _check_format(self) -> None:
        found = int(json.loads(self._fact_texts()["format"]))
        if found > COMPRESSED_FORMAT:
            raise StoreError(
                f"{self.where} has format {found}; this version reads up to {COMPRESSED_FORMAT}: install a newer one"
            )

    def _accept_loss(self) -> None:
        """Let the newest row that is there be the head, if all that is wrong is that later ones are not."""
        try:
            lost = f"rows up to {self._tables.read_head().number} were lost"
        except StoreError as error:
            lost = str(error)
        head = self._follow()[0]
        self._head = head
        with self._writing():
            self._tables.write_head(head)
        self._snapshots = []
        self.append(Entry(self.seconds, 0, "", Event.LOSS_ACCEPTED, f"{lost}; the log ended with row {head.number}"))

    # Writing

    @property
    def head(self) -> Head:
        """The newest row."""
        return self._head

    def append(self, entry: Entry, *, durable: bool = True) -> None:
        """Write one entry; `durable=False` lets it wait for the next durable one."""
        sent = None if entry.payload is None else hashlib.sha256(entry.payload).digest()
        with self._lock, self._writing():
            self._insert(_stored(entry, self._head.number + 1, sent), entry.payload)
            if durable:
                self._tables.commit()

    def commit(self) -> None:
        """Make everything appended so far durable."""
        with self._lock, self._writing():
            self._tables.commit()

    def forget(self, up_to: int, entry: Entry) -> None:
        """Delete the rows up to this number, and write down that this was done, what the last of them was, and what the
        facts are: the chain no longer begins with them.
        """
        facts, last = first_hash(self._fact_texts()), self._fetch("SELECT hash FROM log WHERE number = ?", [up_to])
        if not last:
            return
        with self._lock, self._writing():
            self._tables.forget_updates(up_to)
            self._tables.change("DELETE FROM log WHERE number <= ?", [up_to])
            said = _stored(entry, self._head.number + 1, None)
            reason = f"{bytes(last[0][0]).hex()} {facts.hex()}"
            self._insert((*said[:5], reason, *said[6:9], up_to, *said[10:]), None)
            self._tables.commit()

    def drop_updates(self, up_to: int, entry: Entry) -> None:
        """Forget the updates of rows up to this number, and write down that this was done. The rows stay, with the
        hashes of what was sent.
        """
        with self._lock, self._writing():
            self._tables.forget_updates(up_to)
            said = _stored(entry, self._head.number + 1, None)
            self._insert((*said[:9], up_to, *said[10:]), None)
            self._tables.commit()

    def load(self, source: Journal) -> None:
        """Take every row and update of another journal, each as it is, into this one, which has no rows yet: all, or
        none of them.
        """
        with self._lock, self._writing():
            self._tables.load(source.stored())
        self._head = self._check_chain()

    def fail(self, reason: str) -> StoreError:
        """Write nothing from now on, for this reason."""
        with self._lock:
            self._failure = self._failure or StoreError(reason)
            self._rollback()
            return self._failure

    def close(self) -> None:
        """Make everything durable and close the files; a second time does nothing."""
        if self._failure is None:
            with contextlib.suppress(StoreError):
                self.commit()
        with self._lock:
            self._failure = self._failure or StoreError(f"the run's database {self.where} was closed")
            with contextlib.suppress(*self._tables.errors):  # readers, who may not, are told so
                self._tables.settle()
            self._tables.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The first failure is the last write: what it left is rolled back, and every later one is refused."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except self._unwritable as error:
            said = error.strerror if isinstance(error, OSError) else one_line(str(error))
            self._failure = StoreError(f"the run's database {self.where} cannot be written: {said}")
            self._rollback()
            raise self._failure from None
        except StoreError as error:  # the database has its own words for it
            self._failure = error
            self._rollback()
            raise

    def _rollback(self) -> None:
        with contextlib.suppress(*self._tables.errors):
            self._tables.rollback()

    def _insert(self, said: Row, payload: bytes | None) -> None:
        hashed = row_hash(self._head.hash, said)
        self._tables.insert((*said, self._head.hash, hashed), payload)
        self._head = Head(int(said[0]), hashed)
        if said[4] == Event.SNAPSHOT and self._snapshots is not None:
            self._snapshots.insert(0, (said[2], said[0] - 1, said[5]))

    # Reading

    def entries(
        self,
        event: Event | None = None,
        *,
        after: int = 0,
        payloads: bool = False,
        leave_out: Event | None = None,
        client: str | None = None,
        version: int | None = None,
    ) -> Iterator[Entry]:
        """Entries in order, those with a number above `after`; of one client or version, and with the updates, read one
        at a time, if asked for.

        A row that was not checked when the log was opened is checked against its own hash; if all kinds are read, also
        against the one before it.
        """
        before: bytes | None = None
        in_a_row = (event, leave_out, client, version) == (None,) * 4
        for row in self._rows(event, after, leave_out, client, version):
            if row[0] > self._checked:
                self._check_row(row, before if in_a_row else None)
            before = row[13]
            yield self._entry(row, self._update(row) if payloads else None)

    def following(self, head: Head) -> Iterator[tuple[Head, Entry]]:
        """The entries behind this row with their updates, and the head that each of them is. Every row is checked
        against the one before it, and every update against its row.
        """
        for row in self._rows(after=head.number):
            self._check_row(row, head.hash, head.number + 1)
            head = Head(row[0], row[13])
            yield head, self._entry(row, self._update(row))

    def stored(self) -> Iterator[tuple[Row, bytes | None]]:
        """Every row as it is stored, with its update; the chain is followed on the way."""
        before: bytes | None = None
        for row in self._rows():
            self._check_row(row, before)
            before = row[13]
            yield row, self._update(row)

    def entry(self, number: int) -> Entry | None:
        """The entry of this number, without its update."""
        found = self._fetch(f"{self._rows_query} WHERE number = ?", [number])
        if not found:
            return None
        self._check_row(found[0])
        return self._entry(found[0], None)

    def clients(self) -> list[str]:
        """Everyone whom an entry is about."""
        return [client for (client,) in self._fetch("SELECT DISTINCT client FROM log WHERE client <> ''", [])]

    def first_without_update(self) -> Entry | None:
        """The first arrival that was judged and whose update is not on record; None if there is no such row."""
        marks = ", ".join("?" * len(UNJUDGED))
        number = self._value(
            f"SELECT min(number) FROM log WHERE event = ? AND reason NOT IN ({marks}) AND {self._without_update}",
            [str(Event.ARRIVAL), *map(str, UNJUDGED)],
        )
        return None if number is None else self.entry(number)

    def facts(self) -> dict[str, Any]:
        """What was in force when the run began. Among it is the run's secret seed: show it to nobody."""
        try:
            return {name: json.loads(value) for name, value in self._fact_texts().items()}
        except ValueError:
            raise unreadable_facts(self.where) from None

    def first_hash(self) -> bytes:
        """What the chain begins with: the hash of the facts."""
        return first_hash(self._fact_texts())

    def hash_before(self, number: int) -> bytes | None:
        """What the row of this number says the hash of the one before it is; None if there is no such row."""
        found = self._fetch("SELECT before FROM log WHERE number = ?", [number])
        return bytes(found[0][0]) if found else None

    def last_number(self) -> int:
        """The number of the newest entry; 0 if there is none."""
        return int(self._value("SELECT coalesce(max(number), 0) FROM log"))

    def snapshots(self) -> list[tuple[int, int, str]]:
        """(version, number of the last row it covers, SHA-256) of every snapshot on record, newest first."""
        if self._snapshots is not None:
            return list(self._snapshots)
        found = [(entry.version, (entry.number or 0) - 1, entry.reason) for entry in self.entries(Event.SNAPSHOT)]
        return found[::-1]

    def last_before(self, seconds: float) -> int:
        """The number of the newest row that was written before this time of the run; 0 if there is none."""
        return int(self._value("SELECT coalesce(max(number), 0) FROM log WHERE seconds < ?", [seconds]))

    def update_bytes(self) -> int:
        """Bytes of updates kept."""
        return self._reading(self._tables.update_bytes)

    def check(self) -> Head | None:
        """Follow the chain from the facts to the newest row and compare it with the head kept apart.

        `StoreError` names the first row that is not as it was written, or what is missing. None for a log without a
        chain, as 0.1 wrote it.
        """
        return self._check_chain()

    def _check_chain(self) -> Head:
        """The newest row. A live server may forget rows that are being read: what is left is then followed anew."""
        while True:
            first = self._first_number()
            try:
                return self._check_chain_once()
            except UnreachableError:
                raise
            except StoreError:
                if self._first_number() == first:
                    raise

    def _first_number(self) -> int:
        return int(self._value("SELECT coalesce(min(number), 0) FROM log"))

    def _check_chain_once(self) -> Head:
        expected = self._tables.read_head()  # first: a live server writes the log, then the head
        head, met = self._follow(expected)
        if not met:
            raise StoreError(self._shortfall(head, expected))
        self._check_updates()
        return head

    def _check_since(self, known: Head) -> Head:
        """The newest row, by way of all behind the known one."""
        expected, head = self._tables.read_head(), known
        met = head == expected
        for row in self._rows(after=known.number):
            self._check_row(row, head.hash, head.number + 1)
            head = Head(row[0], row[13])
            met = met or head == expected
        if not met:
            raise StoreError(self._shortfall(head, expected))
        self.seconds = float(self._value("SELECT coalesce(max(seconds), 0) FROM log"))
        self.forgotten = int(
            self._value("SELECT coalesce(max(base), 0) FROM log WHERE event = ?", [str(Event.FORGOTTEN)])
        )
        self._checked = head.number
        self._snapshots = self.snapshots()
        self._check_updates()
        return head

    def _follow(self, expected: Head | None = None) -> tuple[Head, bool]:
        """The newest row, by way of all others, and whether one of them is the expected one."""
        facts = first_hash(self._fact_texts())
        head, begun_at = Head(0, facts), None
        met, seconds, forgotten = head == expected, 0.0, dict[int, str]()
        snapshots: list[tuple[int, int, str]] = []
        for row in self._rows():
            if head.number == 0 and row[0] != 1:  # the first rows were forgotten: a later row must say so
                begun_at = head = Head(row[0] - 1, row[12])
            self._check_row(row, head.hash, head.number + 1)
            head = Head(row[0], row[13])
            met = met or head == expected
            if row[4] == Event.FORGOTTEN:
                forgotten[row[9]] = row[5]
            elif row[4] == Event.SNAPSHOT:
                snapshots.append((row[2], row[0] - 1, row[5]))
            seconds = max(seconds, row[1])
        said = "" if begun_at is None else forgotten.get(begun_at.number, "")  # later ones came while this was read
        if begun_at is not None and said != f"{begun_at.hash.hex()} {facts.hex()}":
            if said.startswith(f"{begun_at.hash.hex()} "):
                raise StoreError(f"{self.where}: the facts are damaged or were changed: their hash does not match")
            raise StoreError(f"{self.where}: rows 1 to {begun_at.number} are missing, and no row says why")
        self._snapshots, self.seconds, self._checked = snapshots[::-1], seconds, head.number
        self.forgotten = 0 if begun_at is None else begun_at.number
        return head, met

    def _check_updates(self) -> None:
        """Every update that was sent is there, but for those that were forgotten."""
        missing, newest = self._fetch(_MISSING_UPDATE, [str(Event.UPDATES_FORGOTTEN)])[0]
        if missing is not None:
            raise StoreError(f"{self.where}: the update in row {missing} is missing, and no row says why")
        self._updates_checked = newest or 0

    def _shortfall(self, head: Head, expected: Head) -> str:
        if head.number < expected.number:
            lost = f"rows {head.number + 1} to {expected.number} are lost"
            return f"{self.where} went back: {lost}. Restore a copy, or accept it: secureafl verify --accept-loss"
        return f"{self.where}: row {expected.number} is not the one that was written"

    def _rows(
        self,
        event: Event | None = None,
        after: int = 0,
        leave_out: Event | None = None,
        client: str | None = None,
        version: int | None = None,
    ) -> Iterator[Row]:
        asked: dict[str, Any] = {"number >": after, "event =": event, "event <>": leave_out, "client =": client}
        asked["version ="] = version
        conditions = {condition: value for condition, value in asked.items() if value is not None}
        parameters = [str(value) if isinstance(value, Event) else value for value in conditions.values()]
        where = " AND ".join(f"{condition} ?" for condition in conditions)
        query = f"{self._rows_query} WHERE {where} ORDER BY number LIMIT {_BATCH}"
        while True:
            rows = self._fetch(query, parameters)
            yield from rows
            if len(rows) < _BATCH:
                return
            parameters[0] = rows[-1][0]

    def _check_row(self, row: Row, before: bytes | None = None, number: int | None = None) -> None:
        if number is not None and row[0] != number:
            raise StoreError(f"{self.where}: row {number} is missing")
        try:
            whole = row_hash(row[12], row[:12]) == row[13]
        except TypeError:
            whole = False
        if not whole or (before is not None and row[12] != before):
            raise StoreError(f"{self.where}: row {row[0]} is damaged or was changed: its hash does not match")

    def _update(self, row: Row) -> bytes | None:
        """The update of a row; None if it has none, or it was forgotten."""
        number, sent = row[0], row[10]
        if sent is None:
            return None
        update = self._reading(lambda: self._tables.read_update(number))
        if update is None:
            if number > self._updates_checked:
                self._check_updates()
            return None
        return self._whole(update, number, lambda update: hashlib.sha256(update).digest() == sent)

    def _whole(self, update: bytes, number: int, is_whole: Callable[[bytes], bool]) -> bytes:
        if not is_whole(update):
            raise StoreError(f"{self.where}: the update in row {number} is damaged (its checksum does not match)")
        return bytes(update)

    def _entry(self, row: Row, payload: bytes | None) -> Entry:
        number, seconds, version, client, event, reason, accepted, evidence, ticket, base, sent, model, _, _ = row
        try:
            return Entry(
                float(seconds),
                version,
                str(client),
                Event(str(event)),
                RENAMED_REASONS.get(str(reason), str(reason)),
                None if accepted is None else bool(accepted),
                _from_json(str(evidence)),
                ticket,
                base,
                payload,
                model,
                number,
                sent,
            )
        except (ValueError, TypeError, AttributeError):  # of a log without a chain
            raise StoreError(f"{self.where}: row {number} is damaged: it cannot be read") from None

    def _fact_texts(self) -> dict[str, str]:
        found: dict[str, str] = dict(self._fetch("SELECT name, value FROM facts"))
        if not all(isinstance(text, str) for pair in found.items() for text in pair):
            raise unreadable_facts(self.where)
        return found

    def _value(self, query: str, parameters: Sequence[Any] = ()) -> Any:
        """The one value that answers the query."""
        return self._fetch(query, parameters)[0][0]

    def _fetch(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Every row that answers the query."""
        return self._reading(lambda: self._tables.read(query, parameters))

    def _reading(self, read: Callable[[], Result]) -> Result:
        """What was read, behind all that was written; the database's errors become ours, with its name."""
        with self._lock:
            if self._tables.waiting:
                with self._writing():
                    self._tables.commit()
            try:
                return read()
            except self._unreadable as error:
                said = one_line(str(error))
                kind = UnreachableError if self._tables.is_unreachable(error) else StoreError
                raise kind(f"the run's database {self.where} cannot be read: {said}") from None


@contextlib.contextmanager
def opening(tables: Tables) -> Iterator[None]:
    """What fails while a run is opened is said in our words, and the database let go of."""
    try:
        yield
    except BaseException as error:
        tables.close()
        if isinstance(error, tables.errors):
            raise cannot_open(tables.where, error, unreachable=tables.is_unreachable(error)) from None
        if isinstance(error, KeyError | ValueError | TypeError):
            raise unreadable_facts(tables.where) from None
        raise


def cannot_open(where: str, error: Exception, *, unreachable: bool = False) -> StoreError:
    """The database's driver says why."""
    kind = UnreachableError if unreachable else StoreError
    return kind(f"cannot open the run's database {where}: {one_line(str(error))}")


def unreadable_facts(where: str) -> StoreError:
    """The facts are not what was written."""
    return StoreError(f"the run's database {where} is damaged: its facts cannot be read")


def fact_texts(facts: Mapping[str, object]) -> dict[str, str]:
    """The facts of a run in the present format, each as it is stored."""
    own = FORMAT if facts.get("wire", "float32") == "float32" else COMPRESSED_FORMAT
    return {name: json.dumps(value) for name, value in {"format": own, **facts}.items()}


def _stored(entry: Entry, number: int, sent: bytes | None) -> Row:
    """The columns of a row, in the types that SQLite gives back."""
    return (
        number,
        float(entry.seconds),
        int(entry.version),
        str(entry.client),
        str(entry.event),
        str(entry.reason),
        None if entry.accepted is None else int(entry.accepted),
        _to_json(entry.evidence),
        entry.ticket,
        entry.base,
        sent,
        entry.model,
    )


def _to_json(evidence: Mapping[str, float]) -> str:
    """JSON knows no infinity: such numbers are written as text."""
    return json.dumps({key: value if math.isfinite(value) else str(value) for key, value in evidence.items()})


def _from_json(text: str) -> dict[str, float]:
    return {key: float(value) for key, value in json.loads(text).items()}
