"""Servers that share a run in a database, on a virtual clock: stopped, killed, cut off, with clocks that drift.

    python -m tests.simulation.leadership --seeds 0:1000      # or --seed N to see one

The lease, the fence and the journal are the real ones; the database and the network are simulated. Checked are, by
seed: nothing acknowledged is ever lost, no row is written by a server that does not lead, the lease never changes hands
before it has ended, no two servers take themselves for the leader at a time, and the chain of rows is whole.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import psycopg
from tests.simulation.database import Connection, Killed, Tables
from tests.simulation.ledger import BrokenPromise, insist

from secureafl.errors import StoreError
from secureafl.server.record import postgres
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.journal import Journal, fact_texts
from secureafl.server.record.lease import RENEWALS, Lease
from secureafl.server.record.postgres import PostgresTables

LEASE_SECONDS = 10.0
NUM_PROCESSES = 3
NUM_TURNS = 120
MAX_DEPTH = 3
DRIFT = 0.05


@dataclass(slots=True)
class Report:
    """What happened in one run."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)
    broken: str = ""


class Process:
    """A server. Its clock has an origin and a pace of its own."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self._origin = float(world.rng.uniform(0.0, 1e6))
        self._pace = float(world.rng.uniform(1.0 - DRIFT, 1.0 + DRIFT))
        self._patience = float(world.rng.choice([0.0, 0.0, 30.0]))
        self.cut_until = 0.0
        self.busy = False  # within a call, maybe stopped
        self.lease: Lease | None = None
        self._journal: Journal | None = None
        self._renewed = 0.0
        self._number = 0

    @property
    def is_cut_off(self) -> bool:
        return self._world.now < self.cut_until

    def clock(self) -> float:
        return self._origin + self._pace * self._world.now

    def connect(self) -> Any:
        self._world.disturb(self)
        if self.is_cut_off:
            raise psycopg.OperationalError("connection refused")
        return Connection(self._world, self, LEASE_SECONDS)

    def sleep(self, seconds: float) -> None:
        self._world.pass_time(max(seconds, 0.05))

    def leads(self) -> bool:
        """Whether it takes itself for the leader, as it would before it writes or hands out anything."""
        return self.lease is not None and self.lease._lost is None and self.clock() <= self.lease._until

    def turn(self) -> None:
        """Do the next thing."""
        if self.lease is None or self._journal is None:
            self._begin()
            return
        if self.clock() > self._renewed + LEASE_SECONDS / RENEWALS:
            self._renewed = self.clock()
            with contextlib.suppress(psycopg.Error), contextlib.closing(self.connect()) as database:
                self.lease.renew(database)
        self.lease.require()
        self._append(self._journal, Entry(0.0, 0, "client", Event.ARRIVAL, "accepted", True, payload=b"update"))

    def _append(self, journal: Journal, entry: Entry) -> None:
        journal.append(entry)
        self._world.acknowledged(journal)

    def _begin(self) -> None:
        lease = Lease(
            "run",
            self.connect,
            LEASE_SECONDS,
            patience=self._patience,
            clock=self.clock,
            sleep=self.sleep,
            in_thread=False,
        )
        self.lease, self._renewed = lease, self.clock()
        begun = bool(self._world.tables.facts)
        tables = PostgresTables("run", self.connect, lease, self._patience)
        self._journal = Journal.resume(tables) if begun else Journal.begin(tables, fact_texts({"seed": 1}))
        self._append(self._journal, Entry(0.0, 0, "", Event.RESUMED))


class World:
    """One run, by its seed."""

    def __init__(self, seed: int) -> None:
        self.report = Report(seed)
        self.rng = np.random.default_rng(seed)
        self.now = 1000.0
        self.tables = Tables()
        self.connections: list[Connection] = []
        self._processes: list[Process] = []
        self._acknowledged: dict[int, bytes] = {}
        self._num_started = 0
        self._depth = 0
        self._faults = float(self.rng.choice([0.0, 0.02, 0.1]))

    def run(self) -> Report:
        try:
            with mock.patch.object(postgres, "time", _Time(self)):
                for _ in range(NUM_TURNS):
                    self._one_turn()
                self._conclude()
        except BrokenPromise as broken:
            self.report.broken = str(broken)
        except Exception as error:  # a raw error is a broken promise too
            self.report.broken = f"raw {type(error).__name__}: {error}"
        return self.report

    def _one_turn(self) -> None:
        while len(self._processes) < NUM_PROCESSES:
            self._num_started += 1
            self._processes.append(Process(self, f"server-{self._num_started}"))
        idle = [process for process in self._processes if not process.busy]
        self.now += float(self.rng.uniform(0.01, 1.0))
        if not idle:
            return
        process = idle[int(self.rng.integers(len(idle)))]
        process.busy = True
        try:
            process.turn()
        except (StoreError, psycopg.Error) as error:
            self._say(f"{process.name} ends: {error}")
            self._remove(process)
        except Killed:
            self._say(f"{process.name} is killed")
            self._remove(process)
        process.busy = False
        self._check_belief()

    def _remove(self, process: Process) -> None:
        self._processes.remove(process)
        for connection in self.connections:
            if connection._process is process:
                connection.close()

    def _check_belief(self) -> None:
        believing = [process.name for process in self._processes if not process.busy and process.leads()]
        insist(len(believing) <= 1, f"two leaders at a time: {believing}")

    def pass_time(self, seconds: float) -> None:
        """Somebody waits, or is stopped: the others go on."""
        until = self.now + seconds
        if self._depth < MAX_DEPTH:
            self._depth += 1
            while self.now < until:
                self._one_turn()
            self._depth -= 1
        self.now = max(self.now, until)

    def disturb(self, process: Process) -> None:
        """At any call: nothing, mostly."""
        self.now += 0.001
        if self.rng.random() >= self._faults:
            return
        kind = str(self.rng.choice(["stopped", "killed", "cut off"], p=[0.5, 0.2, 0.3]))
        self.report.counts[kind] += 1
        self._say(f"{process.name} is {kind}")
        if kind == "killed":
            raise Killed
        seconds = float(self.rng.uniform(0.1, 2.5 * LEASE_SECONDS))
        if kind == "stopped":
            self.pass_time(seconds)
        else:
            process.cut_until = self.now + seconds

    def loses_answer(self, process: Process) -> bool:
        lost = bool(self.rng.random() < self._faults)
        if lost:
            self.report.counts["answer to a commit lost"] += 1
            self._say(f"{process.name} gets no answer to a commit")
        return lost

    # What is promised

    def written(self, process: Process, rows: dict[int, tuple[Any, ...]]) -> None:
        self.report.counts["rows"] += len(rows)
        epoch = None if process.lease is None else process.lease.epoch
        insist(epoch == self.tables.head["epoch"], f"{process.name} wrote rows {list(rows)} and does not lead")

    def handed_over(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self.report.counts["leaders"] += 1
        self._say(f"epoch {after['epoch']}")
        taken = after["expires"] - LEASE_SECONDS
        insist(before["expires"] <= taken, f"the lease of epoch {before['epoch']} was taken before its end")

    def acknowledged(self, journal: Journal) -> None:
        self._acknowledged[journal.head.number] = journal.head.hash

    def _conclude(self) -> None:
        self._faults = 0.0
        if self.tables.facts:
            reader = Process(self, "reader")
            journal = Journal.reading(PostgresTables("run", reader.connect, None))
            journal.check()
        for number, digest in self._acknowledged.items():
            insist(number in self.tables.log, f"row {number} was acknowledged and is lost")
            insist(self.tables.log[number][13] == digest, f"row {number} is not the one that was acknowledged")

    def _say(self, text: str) -> None:
        self.report.events.append(f"{self.now:10.3f} {text}")


class _Time:
    """The module `time`, as a process that waits for its database sees it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.pass_time(seconds)


def simulate(seed: int) -> Report:
    """The run of this seed."""
    return World(seed).run()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.leadership")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--seeds", metavar="FROM:TO")
    asked.add_argument("--seed", type=int)
    chosen = parser.parse_args(arguments)
    first, end = map(int, chosen.seeds.split(":")) if chosen.seeds else (chosen.seed, chosen.seed + 1)
    counts: Counter[str] = Counter()
    num_broken, began = 0, time.monotonic()
    for seed in range(first, end):
        report = simulate(seed)
        counts += report.counts
        if chosen.seed is not None:
            sys.stdout.write("\n".join(report.events) + "\n")
        if report.broken:
            num_broken += 1
            sys.stdout.write(f"seed {seed}: {report.broken}\n")
    said = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    took = time.monotonic() - began
    sys.stdout.write(f"{end - first} runs, {num_broken} with a broken promise, {took:.0f} s: {said}\n")
    return 1 if num_broken else 0


if __name__ == "__main__":
    sys.exit(main())
