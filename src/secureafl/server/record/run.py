"""A machine and the journal of all it was asked to do: nothing acknowledged is ever lost.

Every call that changes the machine is an entry of the journal, in order; an arrival is durable before anyone can see
the model it led to. Now and then a snapshot of the whole state shortens the way back. `resume` takes the newest intact
snapshot and repeats the entries behind it, checking the model's hash at every step, and so ends bit for bit where the
server died. A run is held by one server at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as package_version
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from secureafl.defenses import DEFENSES
from secureafl.errors import RowsError, SettingsError, StoreError, UnreachableError
from secureafl.server.machine import Machine, Ticket
from secureafl.server.record.address import LEASE_SECONDS, Place, PlaceSetting, store_of, with_objects
from secureafl.server.record.chain import Head
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.objects import ObjectsSetting
from secureafl.server.record.observer import RunObserver
from secureafl.server.record.resumption import resumed
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.record.sqlite import create_journal
from secureafl.server.record.store import RunHold, Store
from secureafl.settings import Settings
from secureafl.text import one_line
from secureafl.types import UNJUDGED, Reason, Vector, Verdict
from secureafl.wire import CompressedUpdate, Reply, decompress, is_compressed

MAY_DIFFER = frozenset({"format", "package", "memory"})
"""Facts that a later version of this package, or another place for rows, may state otherwise."""


class StoreSettings(Settings):
    """Where a run is kept, and how much of it."""

    run_dir: PlaceSetting | None = None
    """Folder of the run: `run.db`, `snapshots/` and the final model. Or a URL,
    `postgresql://USER@HOST:PORT/DATABASE/RUN`, with the extra `postgres`: RUN is a name, and the database keeps all of
    it. None keeps the journal in memory only."""
    objects: ObjectsSetting | None = None
    """In a database: where the bytes of updates and snapshots are kept instead, by their SHA-256: a folder, as a whole
    path that every server and reader of the run can reach, or `s3://BUCKET/PREFIX`, with the extra `s3`. Rows name
    them. Stated when a run begins; readers, and who resumes it, find it in the database."""
    journal: Literal["full", "verdicts"] = "full"
    """Keep every update, so that a crash loses nothing and the run can be replayed; or verdicts only, so that a crash
    loses what came after the last snapshot."""
    snapshot_every: int = Field(1000, ge=1)
    """Arrivals between two snapshots."""
    keep_snapshots: int = Field(2, ge=1)
    """Newest full snapshots kept, with what builds on them; more than one, so that a damaged one can be passed over."""
    full_snapshot_every: int = Field(1, ge=1)
    """One of so many snapshots is full. The others hold what changed since the last, if that is less than half of the
    state: with many clients, and few heard between two snapshots, they are written sooner. 1 for full ones only."""
    max_journal_bytes: int | None = Field(None, ge=0)
    """Updates kept at most: beyond, those behind the oldest snapshot are forgotten. None keeps all, as replay needs."""
    keep_rows: int | None = Field(None, ge=1)
    """Rows of the log kept, and those that the oldest snapshot does not cover. None keeps all, as replay needs."""
    keep_seconds: float | None = Field(None, gt=0.0)
    """Age up to which rows are kept, and those that the oldest snapshot does not cover. None keeps all."""
    lease_seconds: float = Field(LEASE_SECONDS, ge=1.0)
    """In a database: how long the server that leads the run keeps the lead without renewing it. It renews four times as
    often, and stops itself after four fifths of this if it cannot. Another server takes over no sooner."""
    database_patience: float = Field(0.0, ge=0.0)
    """In a database: how many seconds a server that cannot reach it waits before it stops. Meanwhile it hands out and
    acknowledges nothing, and it goes on only if no other server has taken the lease. 0 stops at the first failure. The
    same holds for `objects`."""

    @model_validator(mode="after")
    def _objects_need_a_database(self) -> Self:
        if self.run_dir is None and self.objects is not None:
            raise SettingsError("objects is for a run in a database: name one as run_dir, or leave objects out")
        if self.run_dir is not None:
            with_objects(self.run_dir, self.objects)
        return self

    def store(self) -> Store | None:
        """Where the run is kept; None if that is in memory."""
        if self.run_dir is None:
            return None
        place = with_objects(self.run_dir, self.objects)
        return store_of(place, lease_seconds=self.lease_seconds, patience=self.database_patience)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is decided once, when a run begins, and not by its settings."""

    seed: int
    """The run's secret: every lot that its defense draws follows from it. No client, log line or sink ever sees it."""
    count_refused: bool = False
    """Whether refused updates count as arrivals: in runs that 0.1 began."""

    @classmethod
    def drawn(cls) -> Origin:
        """That of a new run."""
        return cls(secrets.randbits(63))

    @classmethod
    def on_record(cls, run_dir: Place | None) -> Origin:
        """That of the run that is kept there."""
        facts = _facts_of(_to_resume(run_dir, None if run_dir is None else store_of(run_dir)))
        return cls(facts.get("seed", 0), facts.get("count_refused", False))


class Run:
    """The only hand on a machine. Calls come from one thread at a time."""

    def __init__(
        self,
        machine: Machine,
        settings: StoreSettings = StoreSettings(),
        *,
        facts: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        store: Store | None = None,
    ) -> None:
        """A new run. `facts` describe it; a later `resume` must state the same. `store` takes the place of what
        `settings.run_dir` names.
        """
        self._set_up(machine, settings, clock, store)
        try:
            if self.store is None or self._snapshots is None:
                self.journal = create_journal(facts=self._facts(facts))
                return
            self.store.clear()
            self._snapshots.write_first(machine.model.params)
            self.journal = self.store.create(self._facts(facts))
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise StoreError(f"cannot write to the run's folder {settings.run_dir}: {error.strerror}") from None
            raise

    @classmethod
    def resume(
        cls,
        machine: Machine,
        settings: StoreSettings,
        *,
        facts: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        store: Store | None = None,
        repeated: Head | None = None,
    ) -> Run:
        """Go on from the last durable arrival of the run in `settings.run_dir`; `machine` is as at its start, or has
        gone through all rows up to `repeated`, which the caller has checked.
        """
        store = _to_resume(settings.run_dir, store or settings.store())
        run = cls.__new__(cls)
        run._set_up(machine, settings, clock, store)
        try:
            now = run._facts(facts)
            if repeated is not None:
                del now["first model"]  # the machine is past it
            run._compare(_facts_of(store), now)  # before it is opened, which turns a run of 0.1 into the present format
            run.journal = store.open(known=repeated)
            try:
                run._restore(repeated)
                resumed(store)
            except BaseException:
                run.journal.close()
                raise
        except BaseException:
            run._let_go()
            raise
        return run

    def _set_up(
        self, machine: Machine, settings: StoreSettings, clock: Callable[[], float], store: Store | None
    ) -> None:
        self.machine = machine
        self.settings = settings
        self.store = store or settings.store()
        self._clock = clock
        self._began = clock()
        self._observer: RunObserver | None = None
        self._hold: RunHold | None = None
        self._rows_error: RowsError | None = None
        self._snapshots: Snapshots | None = None
        if self.store is not None:
            self._hold = self.store.hold()
            self._snapshots = Snapshots(self.store.files, settings.full_snapshot_every)

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _facts(self, given: Mapping[str, object] | None) -> dict[str, object]:
        """What is in force, as JSON gives it back."""
        machine = self.machine
        found = {
            "package": package_version("secureafl"),
            "first model": model_hash(machine.model.params).hex(),
            "count_refused": machine.settings.count_refused,
            "keep_recent": machine.settings.keep_recent,
            **(given or {}),
        }
        if (memory := machine.client_memory()) is not None:
            found["memory"] = dataclasses.asdict(memory)
        return dict(json.loads(json.dumps(found)))

    def _compare(self, begun: Mapping[str, Any], facts: Mapping[str, object]) -> None:
        """Raise if the run was begun under other facts; what an older version did not state is not compared."""
        stated = in_todays_names(begun)
        for name in sorted((facts.keys() & stated.keys()) - MAY_DIFFER):
            for part, (then, now) in _differences(name, stated[name], facts[name]).items():
                unsaid = name in {"seed", "first model"}  # a secret, and a hash
                shown = f"another {part}" if unsaid else f"{part} = {then!r}, not {now!r}"
                of_0_1 = name == "first model" and "package" not in stated
                hint = (
                    "; 0.1 judged integer arrays too: its runs of models that have some are not resumed"
                    if of_0_1
                    else ""
                )
                raise StoreError(f"{self.settings.run_dir} was started with {shown}{hint}")

    def _require_rows(self) -> None:
        """Raise if rows could not be read or written before: the state is of no use then, and only a resume helps."""
        if self._rows_error is not None:
            raise RowsError(str(self._rows_error))

    def require_hold(self) -> None:
        """Raise `StoreError` if another server may have the run."""
        if self._hold is not None:
            self._hold.require()

    @property
    def seconds(self) -> float:
        """Time since the run began; a resumed run goes on counting where it stopped."""
        return self._clock() - self._began

    def watch(self, observer: RunObserver) -> None:
        """Show the observer every row so far, and from now on each one when it is written."""
        for entry in self.journal.entries():
            observer.row(entry)
        self._observer = observer

    def issue(self, client: str, version: int | None = None) -> Ticket:
        """Hand the present model, or a kept one, to a client."""
        ticket = self.machine.issue(self.machine.enrol(client), version)
        self._write(self._entry(client, Event.ISSUED, ticket=ticket), durable=False)
        return ticket

    def receive(self, number: int, update: Reply) -> Verdict:
        """Take what came for a ticket: an update, or why there is none in it. An arrival is durable when this returns;
        what is refused without being judged is a row of its own kind, and waits for the next arrival.
        """
        ticket, before, began = self.machine.ticket(number), self.machine.model.version, self._clock()
        self._require_rows()
        try:
            if isinstance(update, Reason):
                verdict = self.machine.refuse(number, update)
            else:
                delta = update.delta if isinstance(update, CompressedUpdate) else update
                verdict = self.machine.receive(number, delta)
        except RowsError as error:
            self._rows_error = error  # the machine has taken in half an arrival
            raise
        if ticket is None:
            self.note("", Event.UNSOLICITED, str(verdict.reason))
            return verdict
        client = self.machine.name_of(ticket.client)
        if self.machine.model.version == before:
            self._write(self._entry(client, Event.REFUSED, str(verdict.reason), ticket), durable=False)
            return verdict
        judged = self._clock()
        self._write(
            Entry(
                self.seconds,
                before,
                client,
                Event.ARRIVAL,
                str(verdict.reason),
                verdict.accepted,
                verdict.evidence,
                number,
                ticket.version,
                self._payload(update),
                model_hash(self.machine.model.params),
            )
        )
        if self._observer is not None:
            self._observer.took("step", judged - began)
            self._observer.took("journal", self._clock() - judged)
        if self._snapshots is not None and self.machine.model.version % self.settings.snapshot_every == 0:
            self.snapshot()
        return verdict

    def withdraw(self, number: int, event: Event, reason: str) -> None:
        """No update will come for this ticket: record why."""
        ticket = self.machine.ticket(number)
        if ticket is not None:
            self.machine.withdraw(number)
            client = self.machine.name_of(ticket.client)
            self._write(self._entry(client, event, reason, ticket), durable=False)

    def note(self, client: str, event: Event, reason: str = "", evidence: Mapping[str, float] | None = None) -> None:
        """Write down something that does not touch the machine."""
        self._write(self._entry(client, event, reason, evidence=evidence), durable=False)

    def snapshot(self) -> None:
        """Write the whole state, forget old snapshots, and keep the journal within its bounds."""
        if self._snapshots is None:
            return
        self._require_rows()
        began = self._clock()
        self.journal.commit()
        try:
            digest = self._snapshots.write(self.machine.model.version, self.machine.state_view())
            self._write(self._entry("", Event.SNAPSHOT, digest))
            kept = self._snapshots.newest(self.journal.snapshots(), self.settings.keep_snapshots)
            self._snapshots.keep_only([(version, sha256) for version, _, sha256 in kept])
        except OSError as error:
            raise self.journal.fail(f"cannot write a snapshot to {self.settings.run_dir}: {error.strerror}") from None
        self._forget(up_to=kept[-1][1])
        if self._observer is not None:
            self._observer.took("snapshot", self._clock() - began)

    def _forget(self, up_to: int) -> None:
        """Keep the journal within its bounds; nothing behind this row is touched, as a resume may need it."""
        limits, journal = self.settings, self.journal
        if limits.max_journal_bytes is not None and journal.update_bytes() > limits.max_journal_bytes:
            journal.drop_updates(up_to, self._entry("", Event.UPDATES_FORGOTTEN))
        ends = []
        if limits.keep_rows is not None:
            ends.append(journal.head.number - limits.keep_rows)
        if limits.keep_seconds is not None:
            ends.append(journal.last_before(self.seconds - limits.keep_seconds))
        if ends and (last := min(up_to, max(ends))) > 0:
            journal.forget(last, self._entry("", Event.FORGOTTEN))

    def finish(self) -> None:
        """The run has come to its end: write that down, and leave a last snapshot."""
        self.snapshot()
        self.note("", Event.FINISHED)
        self.journal.commit()

    def close(self) -> None:
        """Make everything durable and let go of the run."""
        self.journal.close()
        self._let_go()

    def _write(self, entry: Entry, *, durable: bool = True) -> None:
        self.journal.append(entry, durable=durable)
        if self._observer is not None:
            self._observer.row(entry)

    def _entry(
        self,
        client: str,
        event: Event,
        reason: str = "",
        ticket: Ticket | None = None,
        evidence: Mapping[str, float] | None = None,
    ) -> Entry:
        number, base = (None, None) if ticket is None else (ticket.number, ticket.version)
        said = one_line(reason)
        version = self.machine.model.version
        return Entry(self.seconds, version, client, event, said, None, evidence or {}, ticket=number, base=base)

    def _payload(self, update: Reply) -> bytes | None:
        """The update's bytes: as they came, if it came compressed. One that is no vector of this model leaves only its
        reason.
        """
        if self.settings.journal != "full" or self._snapshots is None or isinstance(update, Reason):
            return None
        if isinstance(update, CompressedUpdate):
            return update.compressed
        fits = update.dtype == np.float32 and update.shape == self.machine.model.params.shape
        return update.tobytes() if fits else None

    def _restore(self, repeated: Head | None) -> None:
        covered, remarks = self._load_snapshot() if repeated is None else (repeated.number, [])
        if covered < self.journal.forgotten:
            raise StoreError(
                f"{self.settings.run_dir}: no snapshot is intact, and rows 1 to {self.journal.forgotten} were forgotten"
            )
        lost, last_ticket = 0, -1
        for entry in self.journal.entries(after=covered, payloads=True):
            last_ticket = max(last_ticket, -1 if entry.ticket is None else entry.ticket)
            if entry.event is Event.ARRIVAL and entry.payload is None and entry.reason not in UNJUDGED:
                if entry.sent is not None:
                    raise StoreError(f"{self.settings.run_dir}: row {entry.number} has no update on record any more")
                lost += 1
            elif not lost:
                repeat(self.machine, entry, f"{self.settings.run_dir}")
        self.machine.issue_from(last_ticket + 1)
        if lost:
            remarks.insert(0, f"{lost} arrivals after the last snapshot are lost: journal = verdicts")
        if (then := self.journal.facts().get("package")) != (now := package_version("secureafl")):
            remarks.append(f"begun by version {then or '0.1'}, gone on with by {now}")
        self._began = self._clock() - self.journal.seconds
        self.note("", Event.RESUMED, "; ".join(remarks))
        self.journal.commit()
        if lost:  # what comes now does not follow from the rows before it
            self.snapshot()

    def _load_snapshot(self) -> tuple[int, list[str]]:
        """The last entry that the newest intact snapshot covers, and what was wrong with newer ones."""
        assert self._snapshots is not None
        damage: list[str] = []
        for version, number, sha256 in self.journal.snapshots():
            try:
                self.machine.load_state_dict(self._snapshots.read(version, sha256))
            except UnreachableError:
                raise
            except StoreError as error:
                damage.append(str(error))
            else:
                return number, damage
        return 0, damage


def repeat(machine: Machine, entry: Entry, where: str, *, check: bool = True) -> Verdict | None:
    """Do to the machine what this entry says was done, and check that it leads to the same model."""
    if entry.event is Event.ISSUED:
        ticket = machine.issue(machine.enrol(entry.client), entry.base)
        if ticket.number != entry.ticket:
            raise StoreError(f"{where}: row {entry.number} issued ticket {entry.ticket}, repeated as {ticket.number}")
        return None
    if entry.ticket is None:
        return None
    if entry.event is Event.REFUSED:
        return machine.refuse(entry.ticket, entry.reason)
    if entry.event is not Event.ARRIVAL:
        machine.withdraw(entry.ticket)
        return None
    if entry.payload is None:
        verdict = machine.refuse(entry.ticket, entry.reason)
    else:
        verdict = machine.receive(entry.ticket, recorded_delta(entry, len(machine.model.params), where))
    if check and entry.model is not None and model_hash(machine.model.params) != entry.model:
        raise StoreError(f"{where}: repeating row {entry.number} (version {entry.version}) leads to another model")
    return verdict


def recorded_delta(entry: Entry, dim: int, where: str) -> Vector:
    """(d,) the update in this row, whichever way it came."""
    assert entry.payload is not None
    if not is_compressed(entry.payload):
        return np.frombuffer(entry.payload, np.float32).copy()
    delta = decompress(entry.payload, dim)
    if isinstance(delta, Reason):
        raise StoreError(
            f"{where}: the compressed update in row {entry.number} cannot be read ({delta}): install the newest"
            " version of secureafl"
        )
    return delta


def _facts_of(store: Store) -> dict[str, Any]:
    """What is on record of how the run began."""
    journal = store.read()
    try:
        return journal.facts()
    finally:
        journal.close()


def _to_resume(place: Place | None, store: Store | None) -> Store:
    if store is None or not store.has_run():
        raise StoreError(f"there is no run to resume in {place}")
    return store


def in_todays_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A run's facts, with the defense's settings under the names of this version."""
    found = {"wire": "float32", **facts}
    entry = DEFENSES.get(str(found.get("defense")))
    if entry is not None and isinstance(found.get("defense_settings"), Mapping):
        found["defense_settings"] = entry.settings.renamed(found["defense_settings"])
    return found


def _differences(name: str, then: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """What differs, by name; of settings within settings, each by its own."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {
            f"{name}.{key}": (then.get(key), now.get(key))
            for key in sorted(then.keys() | now.keys())
            if then.get(key) != now.get(key)
        }
    return {} if then == now else {name: (then, now)}


def model_hash(params: Vector) -> bytes:
    """SHA-256 of a model, as the journal records it."""
    return hashlib.sha256(np.ascontiguousarray(params).data).digest()
