"""A machine and the journal of all it was asked to do: nothing acknowledged is ever lost.

Every call that changes the machine is an entry of the journal, in order; an arrival is durable before anyone can see
the model it led to. Now and then a snapshot of the whole state shortens the way back. `resume` takes the newest intact
snapshot and repeats the entries behind it, checking the model's hash at every step, and so ends bit for bit where the
server died.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from secureafl.errors import StoreError
from secureafl.server.figures import Observer
from secureafl.server.journal import Entry, Event, Journal
from secureafl.server.machine import Machine, Ticket
from secureafl.server.snapshots import Snapshots
from secureafl.settings import Settings
from secureafl.types import Reason, Vector, Verdict


class StoreSettings(Settings):
    """Where a run is kept, and how much of it."""

    run_dir: Path | None = None
    """Folder of the run: `run.db`, `snapshots/` and the final model. None keeps the journal in memory only."""
    journal: Literal["full", "verdicts"] = "full"
    """Keep every update, so that a crash loses nothing and the run can be replayed; or verdicts only, so that a crash
    loses what came after the last snapshot."""
    snapshot_every: int = Field(1000, ge=1)
    """Arrivals between two snapshots."""
    keep_snapshots: int = Field(2, ge=1)
    """Newest snapshots kept; more than one, so that a damaged one can be passed over."""
    max_journal_bytes: int | None = Field(None, ge=0)
    """Updates kept at most: beyond, those behind the oldest snapshot are forgotten. None keeps all, as replay needs."""


class Run:
    """The only hand on a machine. Calls come from one thread at a time."""

    def __init__(
        self,
        machine: Machine,
        settings: StoreSettings = StoreSettings(),
        *,
        facts: dict[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A new run. `facts` describe it; a later `resume` must state the same."""
        self._open(machine, settings, clock)
        if self.journal.last_number() > 0:
            raise StoreError(f"{settings.run_dir} already holds a run: resume it, or name another folder")
        if self._snapshots is not None:
            self._snapshots.write_first(machine.model.params)
        for name, value in {**(facts or {}), "first model": model_hash(machine.model.params).hex()}.items():
            self.journal.state_fact(name, value)

    @classmethod
    def resume(
        cls,
        machine: Machine,
        settings: StoreSettings,
        *,
        facts: dict[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Run:
        """Go on from the last durable arrival of the run in `settings.run_dir`; `machine` is as at its start."""
        if settings.run_dir is None or not (settings.run_dir / "run.db").exists():
            raise StoreError(f"there is no run to resume in {settings.run_dir}")
        run = cls.__new__(cls)
        run._open(machine, settings, clock)
        run.journal.check()
        for name, value in {**(facts or {}), "first model": model_hash(machine.model.params).hex()}.items():
            stated = run.journal.facts().get(name)
            if stated != value:
                raise StoreError(f"{settings.run_dir} was started with {name} = {stated!r}, not {value!r}")
        run._restore()
        return run

    def _open(self, machine: Machine, settings: StoreSettings, clock: Callable[[], float]) -> None:
        self.machine = machine
        self.settings = settings
        self._clock = clock
        self._began = clock()
        self._observer: Observer | None = None
        self._snapshots: Snapshots | None = None
        if settings.run_dir is not None:
            try:
                settings.run_dir.mkdir(parents=True, exist_ok=True)
                self._snapshots = Snapshots(settings.run_dir / "snapshots")
            except OSError as error:
                raise StoreError(f"cannot write to the run's folder {settings.run_dir}: {error.strerror}") from None
        self.journal = Journal(settings.run_dir / "run.db" if settings.run_dir is not None else None)

    @property
    def seconds(self) -> float:
        """Time since the run began; a resumed run goes on counting where it stopped."""
        return self._clock() - self._began

    def watch(self, observer: Observer) -> None:
        """Show the observer every row so far, and from now on each one when it is written."""
        for entry in self.journal.entries():
            observer.row(entry)
        self._observer = observer

    def issue(self, client: str, version: int | None = None) -> Ticket:
        """Hand the present model, or a kept one, to a client."""
        ticket = self.machine.issue(self.machine.enrol(client), version)
        self._write(self._entry(client, Event.ISSUED, ticket=ticket), durable=False)
        return ticket

    def receive(self, number: int, answer: Vector | Reason) -> Verdict:
        """Take the answer to a ticket: an update, or why there is none in it. Durable when this returns."""
        ticket, before, began = self.machine.ticket(number), self.machine.model.version, self._clock()
        if isinstance(answer, Reason):
            verdict = self.machine.reject(number, answer)
        else:
            verdict = self.machine.receive(number, answer)
        if ticket is None:
            self.note("", Event.UNSOLICITED, str(verdict.reason))
            return verdict
        judged = self._clock()
        self._write(
            Entry(
                self.seconds,
                before,
                self.machine.roster[ticket.client],
                Event.ARRIVAL,
                str(verdict.reason),
                verdict.accepted,
                verdict.evidence,
                number,
                ticket.version,
                self._payload(answer),
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
        """No answer will come to this ticket: record why."""
        ticket = self.machine.ticket(number)
        if ticket is not None:
            self.machine.withdraw(number)
            client = self.machine.roster[ticket.client]
            self._write(self._entry(client, event, reason, ticket), durable=False)

    def note(self, client: str, event: Event, reason: str = "") -> None:
        """Write down something that does not touch the machine."""
        self._write(self._entry(client, event, reason), durable=False)

    def snapshot(self) -> None:
        """Write the whole state, forget old snapshots, and keep the journal within its bounds."""
        if self._snapshots is None:
            return
        began = self._clock()
        self.journal.commit()
        version = self.machine.model.version
        try:
            digest = self._snapshots.write(version, self.machine.state_dict())
        except OSError as error:
            raise StoreError(f"cannot write a snapshot to {self.settings.run_dir}: {error.strerror}") from None
        self.journal.note_snapshot(version, self.journal.last_number(), digest)
        kept = self.journal.snapshots()
        for old, _, _ in kept[self.settings.keep_snapshots :]:
            self.journal.forget_snapshot(old)
            self._snapshots.remove(old)
        limit = self.settings.max_journal_bytes
        if limit is not None and self.journal.payload_bytes() > limit:
            self.journal.drop_payloads(up_to=kept[: self.settings.keep_snapshots][-1][1])
        if self._observer is not None:
            self._observer.took("snapshot", self._clock() - began)

    def finish(self) -> None:
        """The run has come to its end: write that down, and leave a last snapshot."""
        self.snapshot()
        self.note("", Event.FINISHED)
        self.journal.commit()

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        self.journal.close()

    def _write(self, entry: Entry, *, durable: bool = True) -> None:
        self.journal.append(entry, durable=durable)
        if self._observer is not None:
            self._observer.row(entry)

    def _entry(self, client: str, event: Event, reason: str = "", ticket: Ticket | None = None) -> Entry:
        number, base = (None, None) if ticket is None else (ticket.number, ticket.version)
        return Entry(self.seconds, self.machine.model.version, client, event, reason, ticket=number, base=base)

    def _payload(self, answer: Vector | Reason) -> bytes | None:
        """The update's bytes; an answer that is no vector of this model leaves only its reason."""
        if self.settings.journal != "full" or self._snapshots is None or not isinstance(answer, np.ndarray):
            return None
        fits = answer.dtype == np.float32 and answer.shape == self.machine.model.params.shape
        return answer.tobytes() if fits else None

    def _restore(self) -> None:
        covered, damage = self._load_snapshot()
        seconds, lost = 0.0, 0
        for entry in self.journal.entries(after=covered, payloads=True):
            seconds = max(seconds, entry.seconds)
            if lost or (entry.event is Event.ARRIVAL and entry.accepted and entry.payload is None):
                lost += entry.event is Event.ARRIVAL
            else:
                repeat(self.machine, entry, f"{self.settings.run_dir}")
        if lost and self.settings.journal == "full":
            raise StoreError(
                f"{self.settings.run_dir}: {lost} arrivals behind the newest intact snapshot have no update on record"
            )
        remarks = [*damage, f"{lost} arrivals after the last snapshot are lost: journal = verdicts"][
            : None if lost else -1
        ]
        self._began = self._clock() - seconds
        self.note("", Event.RESUMED, "; ".join(remarks))
        self.journal.commit()

    def _load_snapshot(self) -> tuple[int, list[str]]:
        """The last entry that the newest intact snapshot covers, and what was wrong with newer ones."""
        assert self._snapshots is not None
        damage: list[str] = []
        for version, number, sha256 in self.journal.snapshots():
            try:
                self.machine.load_state_dict(self._snapshots.read(version, sha256))
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
    if entry.event is not Event.ARRIVAL:
        machine.withdraw(entry.ticket)
        return None
    if entry.payload is None:
        verdict = machine.reject(entry.ticket, entry.reason)
    else:
        verdict = machine.receive(entry.ticket, np.frombuffer(entry.payload, np.float32).copy())
    if check and entry.model is not None and model_hash(machine.model.params) != entry.model:
        raise StoreError(f"{where}: repeating row {entry.number} (version {entry.version}) leads to another model")
    return verdict


def model_hash(params: Vector) -> bytes:
    """SHA-256 of a model, as the journal records it."""
    return hashlib.sha256(np.ascontiguousarray(params).data).digest()
