"""What a simulated run has promised so far, and whether its files keep it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from secureafl import Machine
from secureafl.errors import StoreError
from secureafl.server.record.chain import HEAD, HeadFile
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.folder import DATABASE, FolderFiles
from secureafl.server.record.run import model_hash, repeat
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.record.sqlite import read_journal
from secureafl.types import UNJUDGED, Reason, Vector, Verdict
from secureafl.wire import CompressedUpdate, Reply

_LOST = re.compile(r"(\d+) arrivals after the last snapshot are lost: journal = verdicts")
_NO_ARRIVAL = UNJUDGED | {Reason.TICKET_CLOSED, Reason.UNSOLICITED}


class BrokenPromise(Exception):  # noqa: N818 - it is a finding, not an error
    """Something that the server says of itself did not hold."""


def insist(condition: bool, promise: str) -> None:
    if not condition:
        raise BrokenPromise(promise)


State = dict[str, bytes]


def state_of(machine: Machine) -> State:
    return {key: np.ascontiguousarray(value).tobytes() for key, value in machine.state_dict().items()}


@dataclass(frozen=True, slots=True)
class Step:
    """Something that was done to the machine: a row, or a least number for the next ticket."""

    number: int
    entry: Entry | None = None
    issue_from: int = 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of a resumed server: what its machine has gone through, and how many arrivals it had to give up."""

    steps: list[Step]
    num_lost: int


class Ledger:
    """Hears of every row, verdict and model handed out, and compares them with what the files say."""

    def __init__(self, run_dir: Path, journal: str, new_machine: Callable[[], Machine]) -> None:
        self._run_dir = run_dir
        self._keeps_updates = journal == "full"
        self._new_machine = new_machine
        first = new_machine().model.params
        self._first = model_hash(first)
        self._shape = first.shape
        self._appended: dict[int, Entry] = {}  # by number: rows that servers wrote, with their updates
        self._arrivals: dict[int, int] = {}  # ticket -> row, of the server at work
        self._acknowledged: dict[int, Entry] = {}
        self._num_acknowledged = 0  # of the server at work
        self._handed_out: set[bytes] = set()
        self._rows: dict[int, Entry] = {}  # on record after the last server, or forgotten by then
        self._steps: list[Step] = []
        self.at_hand: Reply | None = None

    # While a server is at work

    def begin(self, expected: Expectation) -> None:
        """A server takes over. It may leave a snapshot and die before it says that it resumed."""
        self._steps = expected.steps
        self._arrivals.clear()
        self._appended.clear()
        self._num_acknowledged = 0

    def append(self, entry: Entry, number: int) -> None:
        if entry.event is Event.ARRIVAL:
            entry = replace(entry, payload=self._bytes(self.at_hand))
            self._arrivals[entry.ticket or 0] = number
        self._appended[number] = entry

    def acknowledge(self, ticket: int, verdict: Verdict) -> None:
        if verdict.reason in _NO_ARRIVAL:
            return
        insist(ticket in self._arrivals, f"a verdict for ticket {ticket} was given that no row was written for")
        number = self._arrivals[ticket]
        self._acknowledged[number] = self._appended[number]
        self._num_acknowledged += 1

    def hand_out(self, params: Vector) -> None:
        self._handed_out.add(model_hash(params))

    @property
    def was_used(self) -> bool:
        """Whether any client got a model from this run."""
        return bool(self._handed_out)

    def _bytes(self, update: Reply | None) -> bytes | None:
        if isinstance(update, CompressedUpdate):
            return update.compressed
        fits = isinstance(update, np.ndarray) and update.dtype == np.float32 and update.shape == self._shape
        return update.tobytes() if isinstance(update, np.ndarray) and fits else None

    # After a server

    def check(self) -> None:
        """Everything acknowledged and handed out is on record."""
        rows, forgotten, newest = self.read()
        known = {number: entry for number, entry in {**self._rows, **self._appended}.items() if number <= forgotten}
        for number, entry in rows.items():
            known[number] = self._with_update(number, entry)
        self._rows = known
        for number, entry in self._acknowledged.items():
            found = known.get(number)
            insist(found is not None, f"row {number}, an arrival that was acknowledged, is lost")
            assert found is not None
            same = (found.ticket, found.model, found.reason) == (entry.ticket, entry.model, entry.reason)
            insist(same, f"row {number}, an arrival that was acknowledged, is another one now")
        insist(
            newest >= max(self._acknowledged, default=0), f"the head names row {newest}, acknowledged were later ones"
        )
        models = {entry.model for entry in known.values()} | {self._first}
        insist(self._handed_out <= models, "a model was handed out that is not on record")
        self._check_surplus(rows)

    def _check_surplus(self, rows: dict[int, Entry]) -> None:
        """At most the arrival at hand when the server ended is on record without having been acknowledged."""
        written = [number for number, entry in self._appended.items() if entry.event is Event.ARRIVAL]
        surplus = [number for number in written if number in rows and number not in self._acknowledged]
        insist(len(surplus) <= 1, f"arrivals {surplus} are on record and were never acknowledged")

    def read(self) -> tuple[dict[int, Entry], int, int]:
        """The log as its files say: rows by number, the newest forgotten one, and the row that the head names."""
        journal = read_journal(self._run_dir / DATABASE)
        try:
            journal.check()
            rows = {entry.number or 0: entry for entry in journal.entries(payloads=True)}
            return rows, journal.forgotten, HeadFile(self._run_dir / HEAD).read().number
        finally:
            journal.close()

    def _with_update(self, number: int, entry: Entry) -> Entry:
        if entry.payload is not None:
            return entry
        for source in (self._appended, self._rows):
            if number in source and source[number].model == entry.model:
                return replace(entry, payload=source[number].payload)
        return entry

    # When the next server takes over

    def expectation(self) -> Expectation:
        """What the next server must find. To be asked before it starts, as it may remove snapshots."""
        covered = 0 if self._keeps_updates else self._covered()
        horizon = self._steps[-1].number if self._steps else 0
        last = max(self._rows, default=0)
        steps = [step for step in self._steps if step.number <= min(covered, last)]
        steps += [Step(n, entry) for n, entry in sorted(self._rows.items()) if horizon < n <= covered]
        num_lost, last_ticket = 0, -1
        for number, entry in sorted(self._rows.items()):
            if number <= covered:
                continue
            last_ticket = max(last_ticket, -1 if entry.ticket is None else entry.ticket)
            if entry.event is Event.ARRIVAL and not self._keeps_updates:
                num_lost += 1
            elif not num_lost:
                steps.append(Step(number, entry))
        return Expectation([*steps, Step(last, issue_from=last_ticket + 1)], num_lost)

    def check_resumed(self, machine: Machine, reason: str, expected: Expectation) -> None:
        """The machine is where an undisturbed one would be after the rows on record; the log says what was lost."""
        said = _LOST.search(reason)
        num_lost = expected.num_lost
        insist((int(said[1]) if said else 0) == num_lost, f"{num_lost} arrivals are lost, the log says {reason!r}")
        reference = self._new_machine()
        for step in expected.steps:
            if step.entry is not None:
                repeat(reference, step.entry, "reference")
            reference.issue_from(step.issue_from)
        wanted, found = state_of(reference), state_of(machine)
        differing = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
        insist(not differing, f"the resumed machine differs from an undisturbed one in {differing}")

    def resumed(self, machine: Machine, reason: str, expected: Expectation) -> None:
        """A server went on from files that nobody damaged."""
        insist(_LOST.sub("", reason) == "", f"no file was damaged, the log says {reason!r}")
        self.check_resumed(machine, reason, expected)

    def _covered(self) -> int:
        """The newest row that an intact snapshot covers."""
        snapshots = Snapshots(FolderFiles(self._run_dir))
        for number, entry in sorted(self._rows.items(), reverse=True):
            if entry.event is Event.SNAPSHOT:
                try:
                    snapshots.read(entry.version, entry.reason)
                except StoreError:
                    continue
                return number - 1
        return 0
