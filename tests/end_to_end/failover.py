"""Fail-over under load, against a real PostgreSQL: leaders are killed, stopped past their lease and woken, and cut off.

    python -m tests.end_to_end.failover --killed 20 --stopped 10 --cut 10 --load 100 --out results/failover.json

A few servers in processes of their own share one run. One leads it, and does its clients' work; the others follow it as
standbys and take over in their own process. Each writes down, outside the database, every arrival that was
acknowledged. The database itself writes down who inserted which row under which epoch, and when the lease changed
hands. Each leader acknowledges `--load` arrivals at least before it is disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.end_to_end import failover_worker
from tests.end_to_end.tcp_proxy import HOST, Link
from tests.postgres import USER, PostgresServer, running

from secureafl.server.record.address import store_of
from secureafl.server.record.entries import Event
from secureafl.server.review.verify import verify

LEASE_SECONDS = 5.0
NUM_SERVERS = 3
PATIENCE = 300.0
WATCH = (
    "CREATE TABLE written (number BIGINT, writer TEXT, epoch BIGINT)",
    "CREATE FUNCTION note_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO written"
    " VALUES (NEW.number, current_setting('application_name'), (SELECT epoch FROM head)); RETURN NEW; END $$",
    "CREATE TRIGGER note_row AFTER INSERT ON log FOR EACH ROW EXECUTE FUNCTION note_row()",
    "CREATE TABLE handed_over (epoch BIGINT, early BOOLEAN)",
    "CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.epoch <> OLD.epoch THEN"
    " INSERT INTO handed_over VALUES (NEW.epoch, OLD.expires > clock_timestamp()); END IF; RETURN NEW; END $$",
    "CREATE TRIGGER note_lease AFTER UPDATE ON lease FOR EACH ROW EXECUTE FUNCTION note_lease()",
)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An arrival that a client was told of."""

    version: int
    epoch: int
    model: str
    at: float
    writer: str


class Server:
    """One process, with a link of its own to the database."""

    def __init__(
        self,
        name: str,
        postgres: PostgresServer,
        run: str,
        folder: Path,
        patience: float = 0.0,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.name = name
        self.link = Link(postgres.port)
        self.log = folder / name
        self._read, self._found = 0, list[Acknowledged]()
        url = f"postgresql://{USER}@{HOST}:{self.link.port}/runs/{run}?application_name={name}"
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(
            target=failover_worker.serve,
            args=(url, lease_seconds, str(self.log), str(folder / "stop"), patience),
            daemon=True,
        )
        self._process.start()

    @property
    def lives(self) -> bool:
        return self._process.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether it follows or leads."""
        return self.log.exists() and self.log.stat().st_size > 0

    def send(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def acknowledged(self) -> list[Acknowledged]:
        if not self.log.exists():
            return []
        with self.log.open() as log:  # what is new; a last line may be half written
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind("\n") + 1]
        self._read += len(whole)
        for line in map(str.split, whole.splitlines()):
            if line[0] == "ack":
                self._found.append(Acknowledged(int(line[1]), int(line[2]), line[3], float(line[4]), self.name))
        return self._found

    def end(self) -> str:
        """How it ended."""
        self._process.join(PATIENCE)
        assert not self.lives, f"{self.name} does not end"
        return self.log.read_text().splitlines()[-1] if self.log.exists() else ""

    def close(self) -> None:
        if self.lives:
            self.send(signal.SIGKILL)
            self._process.join()
        self.link.close()


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Kind of disturbance -> from it to the first arrival that the next leader acknowledged."""
    num_acknowledged: int = 0
    num_lost: int = 0
    num_fenced_rows: int = 0
    num_early: int = 0
    """Times that the lease changed hands before it had ended."""
    num_epochs: int = 0
    num_rows: int = 0
    identical: bool = False

    @property
    def all_seconds(self) -> list[float]:
        return [each for some in self.seconds.values() for each in some]


class Trial:
    """One run, its servers, and what is done to them."""

    def __init__(self, postgres: PostgresServer, run: str, folder: Path, seed: int, load: int) -> None:
        """`load` is how many arrivals are acknowledged between two disturbances, or more."""
        self._load = load
        self._postgres = postgres
        self._run = run
        self._folder = folder
        self._rng = random.Random(seed)
        self._url = postgres.url(run)
        self._all: list[Server] = []
        self._out: list[Server] = []  # disturbed, and not to lead again
        self.outcome = Outcome()

    def _start(self) -> None:
        self._all.append(Server(f"server-{len(self._all)}", self._postgres, self._run, self._folder))

    def _present(self) -> list[Server]:
        return [server for server in self._all if server.lives and server not in self._out]

    def _keep_up(self) -> None:
        while len(self._present()) < NUM_SERVERS:
            self._start()

    def _leader(self) -> Server | None:
        newest = [(log[-1].epoch, server) for server in self._present() if (log := server.acknowledged())]
        return max(newest, key=lambda pair: pair[0])[1] if newest else None

    def _wait_for_load(self) -> Server:
        """A leader that has acknowledged its arrivals, with a standby that is ready."""
        seen: dict[str, int] = {}
        deadline = time.monotonic() + PATIENCE
        while True:
            self._keep_up()
            leader = self._leader()
            if leader is not None and sum(server.is_ready for server in self._present()) > 1:
                seen.setdefault(leader.name, leader.acknowledged()[-1].version)
                if leader.acknowledged()[-1].version >= seen[leader.name] + self._load:
                    time.sleep(self._rng.uniform(0.0, 0.3))
                    return leader
            assert time.monotonic() < deadline, [server.end() for server in self._all if not server.lives]
            time.sleep(0.1)

    def begin(self) -> None:
        self._start()
        deadline = time.monotonic() + PATIENCE
        while not self._all[0].acknowledged():
            assert self._all[0].lives, self._all[0].end()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for statement in WATCH:
            self._postgres.execute(self._url, statement)

    def disturb(self, kind: str) -> None:
        leader = self._wait_for_load()
        epoch = leader.acknowledged()[-1].epoch
        self._out.append(leader)
        began = time.monotonic()
        if kind == "killed":
            leader.send(signal.SIGKILL)
        elif kind == "stopped":
            leader.send(signal.SIGSTOP)
        else:
            leader.link.cut()
        first = self._first_after(epoch)
        self.outcome.seconds.setdefault(kind, []).append(first.at - began)
        if kind == "stopped":
            leader.send(signal.SIGCONT)
        elif kind == "cut":
            leader.link.mend()

    @property
    def newest(self) -> int:
        """The newest arrival that was acknowledged."""
        return max(log[-1].version for server in self._all if (log := server.acknowledged()))

    def _first_after(self, epoch: int) -> Acknowledged:
        deadline = time.monotonic() + PATIENCE
        while True:
            self._keep_up()
            latest = [log[-500:] for server in self._present() if (log := server.acknowledged())]
            later = [each for log in latest for each in log if each.epoch > epoch]
            if later:
                return min(later, key=lambda each: each.at)
            assert time.monotonic() < deadline, "nobody takes over"
            time.sleep(0.02)

    def conclude(self) -> Outcome:
        (self._folder / "stop").touch()
        for server in self._all:
            server.end()
        outcome, url = self.outcome, self._url
        verify(url)
        arrivals = {}
        journal = store_of(url).read()
        for entry in journal.entries(Event.ARRIVAL):
            assert entry.model is not None
            arrivals[entry.version] = entry.model.hex()
        outcome.num_rows = journal.last_number()
        journal.close()
        acknowledged = [each for server in self._all for each in server.acknowledged()]
        outcome.num_acknowledged = len(acknowledged)
        outcome.num_lost = sum(arrivals.get(each.version) != each.model for each in acknowledged)
        led = {each.epoch: each.writer for each in acknowledged}
        written = self._postgres.execute(url, "SELECT number, writer, epoch FROM written ORDER BY number")
        outcome.num_fenced_rows = sum(led.get(epoch, writer) != writer for _, writer, epoch in written)
        outcome.num_fenced_rows += sum(later < earlier for (_, _, earlier), (_, _, later) in pairwise(written))
        handed_over = self._postgres.execute(url, "SELECT epoch, early FROM handed_over")
        outcome.num_early = sum(early for _, early in handed_over)
        outcome.num_epochs = 1 + len(handed_over)
        outcome.identical = arrivals == failover_worker.undisturbed(len(arrivals))
        return outcome

    def close(self) -> None:
        for server in self._all:
            server.close()


@contextlib.contextmanager
def trial(postgres: PostgresServer, run: str, seed: int, load: int) -> Iterator[Trial]:
    """A run under load, until the context ends."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([failover_worker.__name__])
    with tempfile.TemporaryDirectory(prefix="secureafl-") as folder:
        found = Trial(postgres, run, Path(folder), seed, load)
        try:
            found.begin()
            yield found
        finally:
            found.close()


def disturb(postgres: PostgresServer, run: str, counts: dict[str, int], seed: int = 0, load: int = 3) -> Outcome:
    """So many disturbances of each kind, in a drawn order, with so many arrivals between them at least."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    with trial(postgres, run, seed, load) as found:
        for place, kind in enumerate(kinds):
            found.disturb(kind)
            took = found.outcome.seconds[kind][-1]
            sys.stdout.write(f"{place + 1} of {len(kinds)}: {kind}, {took:.2f} s, at arrival {found.newest}\n")
            sys.stdout.flush()
        return found.conclude()


def commit() -> str:
    """What was run."""
    said = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=7"], capture_output=True, text=True)
    return said.stdout.strip()


def spread(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """How long it took, by kind of disturbance."""
    return {
        kind: {"count": len(some), "median": round(statistics.median(some), 3), "worst": round(max(some), 3)}
        for kind, some in seconds.items()
    }


def summary(outcome: Outcome, seed: int, load: int) -> dict[str, Any]:
    return {
        "command": "python -m tests.end_to_end.failover --killed N --stopped N --cut N --load N --out FILE",
        "commit": commit(),
        "seed": seed,
        "lease seconds": LEASE_SECONDS,
        "arrivals between disturbances, at least": load,
        "parameters": failover_worker.PROBLEM.dim,
        "seconds without a leader": spread({**outcome.seconds, "all": outcome.all_seconds}),
        "acknowledged arrivals": outcome.num_acknowledged,
        "of these lost": outcome.num_lost,
        "rows": outcome.num_rows,
        "rows written by a fenced leader": outcome.num_fenced_rows,
        "leaders": outcome.num_epochs,
        "leases that changed hands before their end": outcome.num_early,
        "model identical to an undisturbed run": outcome.identical,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.failover", description=__doc__)
    for kind, count in (("killed", 20), ("stopped", 10), ("cut", 10)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--load", type=int, default=100, help="arrivals between two disturbances, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the figures here (JSON)")
    chosen = parser.parse_args(arguments)
    counts = {"killed": chosen.killed, "stopped": chosen.stopped, "cut": chosen.cut}
    with running() as postgres:
        outcome = disturb(postgres, "failover", counts, chosen.seed, chosen.load)
    found = summary(outcome, chosen.seed, chosen.load)
    text = json.dumps(found, indent=2)
    sys.stdout.write(text + "\n")
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")
    return 0 if outcome.identical and not outcome.num_lost + outcome.num_fenced_rows + outcome.num_early else 1


if __name__ == "__main__":
    sys.exit(main())
