"""A week in an hour: real servers, and clients that train, come, go, crash, attack and change keys in virtual time.

    python -m tests.end_to_end.soak --minutes 40 --clients 200 --out results/soak.json

A leader and `secureafl standby` share a run in a PostgreSQL of its own. The clients live in this process, in virtual
time: each trains for hours, which pass in seconds. Leaders are killed, stopped past their lease and cut off from the
database, standbys killed; keys are replaced; clients attack for some days; old updates are forgotten. What clients sent
and were shown is held against the log while it is written, and what the processes take is sampled. A promise that is
not kept, or something that grows, fails the run. `--out` also draws a figure beside the file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import heapq
import itertools
import json
import math
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load
from tests.end_to_end.child_processes import tail
from tests.end_to_end.failover import LEASE_SECONDS, commit, spread
from tests.end_to_end.soak_clients import DAY, Client, Plan, Population, Sends, week
from tests.end_to_end.soak_record import Record, Sent
from tests.end_to_end.soak_samples import DISK, MEGABYTE, ROWS, SNAPSHOTS, UPDATES, Samples
from tests.end_to_end.soak_servers import SECUREAFL, Leader, Servers
from tests.end_to_end.soak_wire import ARRAY, Message
from tests.end_to_end.soak_worker import minimiser
from tests.postgres import PostgresServer, running
from tests.support import Quadratic

from secureafl.errors import StoreError
from secureafl.server import Standby
from secureafl.server.record.address import store_of
from secureafl.server.review.opened import RecordedRun
from secureafl.server.review.verify import verify
from secureafl.types import Vector

PATIENCE = 300.0
NUM_SAMPLES = 300
ARRIVALS_PER_SECOND = 10.0
KEEP_SNAPSHOTS, FULL_SNAPSHOT_EVERY = 2, 3
MOST_OF_ACCEPTED = 0.1
MANY_WITH_VOTES = 0.9
ROW_BYTES = 1000.0


@dataclass(eq=False)
class Job:
    """A model that a client trains on."""

    leader: Leader
    ticket: int
    version: int
    nonce: bytes
    params: Vector
    sends: Sends
    sent_at: float | None = None


class VirtualClock:
    """Hours that pass in seconds; none before `start`."""

    def __init__(self, hours_per_second: float) -> None:
        self.hours_per_second = hours_per_second
        self._began: float | None = None

    def start(self) -> None:
        self._began = time.monotonic()

    def hour(self) -> float:
        return 0.0 if self._began is None else (time.monotonic() - self._began) * self.hours_per_second


class Soak:
    """One run, its servers, its clients, and what becomes of them."""

    def __init__(
        self,
        postgres: PostgresServer,
        plan: Plan,
        folder: Path,
        *,
        minutes: float,
        num_clients: int,
        dim: int = 5000,
        seed: int = 0,
        name: str = "soak",
        snapshot_every: int | None = None,
        hoards: bool = False,
        forgets: bool = True,
    ) -> None:
        """Snapshots come some hundred times, unless `snapshot_every` says otherwise. Faults put in on purpose: a server
        that `hoards` keeps every update in memory, one that does not `forget` keeps all on disk.
        """
        self.plan = plan
        self.problem = Quadratic(num_clients=num_clients, dim=dim, seed=seed)
        self._goal = minimiser(self.problem)
        self.clock = VirtualClock(plan.hours / (60.0 * minutes))
        mean_seconds = num_clients / ARRIVALS_PER_SECOND
        self._rng = np.random.default_rng([seed, 1])
        self.population = Population(self.problem, mean_seconds * self.clock.hours_per_second, folder, self._rng)
        self.record = Record(np.zeros(dim, np.float32))
        self.snapshot_every = snapshot_every or max(50, round(minutes * 60.0 * ARRIVALS_PER_SECOND / 400.0))
        self._keep_rows = 1500 + 20 * self.snapshot_every  # more than a reader is behind on a busy machine
        limits = {"max_journal_bytes": self.snapshot_every * 4 * dim, "keep_rows": self._keep_rows}
        settings = {
            "client_returns": "gradient",
            "server_lr": 0.2 / num_clients,  # votes are as many arrivals old as there are clients
            "snapshot_every": self.snapshot_every,
            "keep_snapshots": KEEP_SNAPSHOTS,
            "full_snapshot_every": FULL_SNAPSHOT_EVERY,
            "lease_seconds": LEASE_SECONDS,
            "keys_file": str(self.population.keys_file),
            "ttl_seconds": max(10.0, 8.0 * mean_seconds),
            "discovery_seconds": 1.0,
            "evaluate_every": 50,
            **(limits if forgets else {}),
        }
        problem = {"num_clients": num_clients, "dim": dim, "seed": seed}
        told = {"settings": settings, "problem": problem, "hoards": hoards}
        self.servers = Servers(postgres, name, folder, told, self.population.present, self._hear)
        self.samples = Samples()
        self.disturbed_at: list[float] = []
        self.num_rotations = self.num_old_keys_refused = self.num_reviews = self.num_returns = 0
        self._heard: queue.SimpleQueue[tuple[Leader, Message]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._jobs: dict[str, Job] = {}
        self._old_key: dict[str, list[int]] = {}  # client -> tickets of updates that it signed with its replaced key
        self._latencies: list[float] = []
        self._newest: tuple[int, Vector] = 0, self.record.first_model
        self._lived = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    # Clients

    def _hear(self, leader: Leader, message: Message) -> None:
        self._heard.put((leader, message))

    def _at(self, hour: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (hour, next(self._order), do))

    def _on_model(self, leader: Leader, head: dict[str, Any], model: bytes) -> None:
        """A client is given a model, and with it the answer to what it sent before."""
        client = self.population.clients[head["client"]]
        if (judged := head["judged"]) is not None:
            self.record.acknowledged.add(judged)
            before = self._jobs.get(client.name)
            if before is not None and before.ticket == judged and before.sent_at is not None:
                self._latencies.append(time.monotonic() - before.sent_at)
        self.record.show(head["version"], model)
        self.servers.note_model(leader)
        params = np.frombuffer(model, np.float32)
        if head["version"] >= self._newest[0]:
            self._newest = head["version"], params
        if client.crashed or client.away:
            return
        hour = self.clock.hour()
        sends = self.population.sends(client, self.plan.attacks, hour)
        nonce = bytes.fromhex(head["nonce"])
        job = self._jobs[client.name] = Job(leader, head["ticket"], head["version"], nonce, params, sends)
        self._at(hour + self.population.training_hours(client, sends), lambda: self._update(client, job))

    def _update(self, client: Client, job: Job) -> None:
        """The client has trained."""
        if self._jobs.get(client.name) is not job or client.crashed or client.away or job.leader.gone:
            return
        if client.old_key is not None:  # it goes on with it until it is seen to be refused
            job.sends = Sends.OLD_KEY
            if self.record.has_bad_signature(self._old_key[client.name]):
                self.num_old_keys_refused += 1
                client.old_key, job.sends = None, Sends.HONEST
            else:
                self._old_key[client.name].append(job.ticket)
        body, signature = self.population.update(client, job.sends, job.params, job.nonce, job.version)
        vector = b"" if job.sends is Sends.GARBAGE else load(body)[ARRAY].tobytes()
        digest = hashlib.sha256(vector).digest()
        self.record.send(job.ticket, Sent(client.name, job.sends, self.clock.hour(), digest))
        job.sent_at = time.monotonic()
        job.leader.outgoing.put(({"client": client.name, "ticket": job.ticket, "signature": signature.hex()}, body))

    def _churn(self) -> None:
        """Some leave, some come back, and some crash with a model in hand and go on later."""
        for client in self.population.clients.values():
            drawn = self._rng.random()
            if client.away:
                client.away = drawn > 0.3
                self.num_returns += not client.away
            elif drawn < 0.02:
                client.away = True
            elif drawn < 0.03 and not client.crashed:
                client.crashed = True
                back = self.clock.hour() + float(self._rng.uniform(1.0, 6.0))
                self._at(back, lambda client=client: setattr(client, "crashed", False))  # type: ignore[misc]
        self.servers.tell({"present": self.population.present()})

    # What the operators do

    def _disturb(self, kind: str) -> None:
        if self.servers.is_ready:
            self.disturbed_at.append(self.clock.hour())
            self.servers.disturb(kind)
        elif (soon := self.clock.hour() + 0.5 * self.clock.hours_per_second) < self.plan.quiet_from:
            self._at(soon, lambda: self._disturb(kind))

    def _rotate(self) -> None:
        self._old_key[self.population.rotate().name] = []
        self.num_rotations += 1

    def _review(self) -> None:
        self._in_thread(self._call_reviews)

    def _call_reviews(self) -> None:
        for command, says in (("verify", "is whole"), ("audit", "accepted")):
            called = [*SECUREAFL, command, str(self.servers.url)]
            done = subprocess.run(called, env=self.servers.environment, capture_output=True, text=True)
            if done.returncode or says not in done.stdout:
                self.record.break_(f"{command} ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
        self.num_reviews += 1

    # What is looked at

    def _in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.record.break_(f"{work.__name__}: {type(error).__name__}: {error}")

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def _follow_log(self) -> None:
        journal = store_of(self.servers.url, lease_seconds=60.0).read()
        while not self._over.wait(0.2):
            for entry in journal.entries(after=self.record.last_row):
                self.record.take(entry)
        journal.close()

    def _keep_sampling(self) -> None:
        seconds = max(0.4, self.plan.hours / self.clock.hours_per_second / NUM_SAMPLES)
        began = time.monotonic()
        for number in itertools.count(1):
            if self._lived.wait(max(0.0, began + number * seconds - time.monotonic())):
                return
            latencies, self._latencies = self._latencies, []
            distance = float(np.linalg.norm(self._newest[1] - self._goal))
            others = {"version": float(self.record.version), "distance": distance}
            self.samples.take(self.clock.hour(), self.servers, latencies, others)
            self.servers.note_writers()

    # From beginning to end

    def begin(self) -> None:
        """A leader with all its clients, and a standby."""
        self.servers.start_leader()
        self._wait(lambda: self.servers.leader is not None, "nobody leads")
        self.servers.watch()
        self.servers.start_standby()
        self._wait(lambda: self.servers.is_ready, "no standby is ready")
        self._in_thread(self._follow_log)

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "\n".join([otherwise, *map(tail, self.servers.logs)])
            self._serve(0.1)

    def _serve(self, seconds: float) -> None:
        """Take what servers say, and do what is due."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0.0:
            while self._timers and self._timers[0][0] <= self.clock.hour():
                heapq.heappop(self._timers)[2]()
            due = (self._timers[0][0] - self.clock.hour()) / self.clock.hours_per_second if self._timers else left
            with contextlib.suppress(queue.Empty):
                leader, message = self._heard.get(timeout=max(0.001, min(left, due)))
                self._on_model(leader, *message)

    def live(self) -> None:
        """Through all the hours of the plan."""
        self.clock.start()
        self._in_thread(self._keep_sampling)
        for hour in range(1, math.ceil(self.plan.hours)):
            self._at(float(hour), self._churn)
        for hour_of, kind in self.plan.disturbances:
            self._at(hour_of, lambda kind=kind: self._disturb(kind))  # type: ignore[misc]
        for hours, do in ((self.plan.rotations, self._rotate), (self.plan.reviews, self._review)):
            for hour_of in hours:
                self._at(hour_of, do)
        for part in range(1, 29):
            while self.clock.hour() < self.plan.hours * part / 28.0:
                self._serve(0.5)
                self._look_at_standby()
            self._say()
        self._lived.set()

    def _look_at_standby(self) -> None:
        standby = self.servers.standby
        if standby is not None and standby.exit_code is not None:
            self.record.break_(f"a standby ended by itself: {tail(standby.log, 5)}")
            self.servers.start_standby()

    def _say(self) -> None:
        shown = self.samples.all[-1].figures if self.samples.all else {}
        names = ("version", "distance", "leader: resident memory (MB)", DISK, "latency p50 (s)")
        figures = ", ".join(f"{name} {shown[name]:.4g}" for name in names if name in shown)
        sys.stdout.write(f"hour {self.clock.hour():.0f}: {figures}; broken: {self.record.broken}\n")
        sys.stdout.flush()

    def end(self) -> None:
        """The run is finished in order, the standby ends with it, and what is kept is checked and repeated."""
        self._timers.clear()
        self._wait(lambda: self.num_reviews == len(self.plan.reviews), "verify or audit do not end")
        self.servers.tell({"stop": True})
        self._wait(lambda: self.record.events["finished"] > 0, "the run is not finished")
        standby = self.servers.standby
        assert standby is not None
        self._wait(lambda: standby.exit_code is not None, "the standby does not end")
        if standby.exit_code:
            self.record.break_(f"the standby ended with {standby.exit_code}: {tail(standby.log, 5)}")
        self._over.set()
        self.servers.note_writers()
        try:
            self._repeat()
        except StoreError as error:
            self.record.break_(f"the run cannot be repeated: {error}")

    def _repeat(self) -> None:
        """From the oldest snapshot that is kept, by a machine of its own."""
        url = self.servers.url
        verify(url)
        with RecordedRun.open(url) as recorded:
            follower = Standby(store_of(url), recorded.machine)
            follower.follow()
        assert follower.machine is not None
        last = follower.machine.model
        self.record.show(last.version, last.params.tobytes())
        follower.close()

    def close(self) -> None:
        self._lived.set()
        self._over.set()
        self.servers.close()
        for thread in self._threads:
            thread.join(10.0)

    # What is judged

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Most that was kept on disk, and at most by the settings."""
        arrivals = (KEEP_SNAPSHOTS * FULL_SNAPSHOT_EVERY + 2) * self.snapshot_every  # that the oldest snapshot lacks
        update = 4.0 * self.problem.dim / MEGABYTE
        # A client's last update and reference, and the model it has; two snapshots, what builds on them, and the next.
        state = 3.0 * (self.problem.num_clients + 10) * update
        snapshots = (KEEP_SNAPSHOTS + 1) * (1.0 + 0.5 * (FULL_SNAPSHOT_EVERY - 1)) * state
        bounds = {UPDATES: arrivals * update, ROWS: self._keep_rows + 6.0 * arrivals, SNAPSHOTS: snapshots}
        # What was deleted takes room until it is used again
        bounds[DISK] = 2.0 * (bounds[UPDATES] + snapshots + bounds[ROWS] * ROW_BYTES / MEGABYTE)
        return {name: (max(self.samples.series(name), default=0.0), bound) for name, bound in bounds.items()}

    def _full_since(self) -> float:
        """The hour from which on old updates were forgotten."""
        arrivals = (KEEP_SNAPSHOTS * FULL_SNAPSHOT_EVERY + 1) * self.snapshot_every
        return next((each.hour for each in self.samples.all if each.figures["version"] >= arrivals), math.inf)

    def distances(self) -> tuple[float, float]:
        """From the optimum, at the start of the quiet part and at its end."""
        quiet = self.samples.series("distance", since=self.plan.quiet_from)
        tenth = max(1, len(quiet) // 10)
        return statistics.median(quiet[:tenth]), statistics.median(quiet[-tenth:])

    def _honest_with_votes(self) -> float:
        votes = self.record.votes(since=self.plan.quiet_from)
        honest = [votes[client.name] > 0.0 for client in self.population.honest() if client.name in votes]
        return statistics.mean(honest) if honest else 0.0

    def promises(self) -> dict[str, bool]:
        """Whether each was kept."""
        record, (begins, ends) = self.record, self.distances()
        shares = [record.accepted(attack.begins, attack.ends) for attack in self.plan.attacks]
        return {
            "nothing went wrong": not record.broken,
            "no acknowledged update is lost": record.num_lost() == 0,
            "one leader at a time": self.servers.num_fenced + self.servers.num_early() == 0,
            "nothing grows": not any(each.grew for each in self.samples.growth(self._full_since())),
            "disk within its bounds": all(seen <= bound for seen, bound in self.bounds().values()),
            "garbage and replaced keys are refused": record.num_let_in() == 0,
            "every replaced key was tried and refused": self.num_old_keys_refused == self.num_rotations,
            "honest clients end with votes": self._honest_with_votes() >= MANY_WITH_VOTES,
            "attackers have little of what is accepted": all(
                (share["malicious of accepted"] or 0.0) <= MOST_OF_ACCEPTED for share in shares
            ),
            "the model stays where it was": ends <= 1.5 * begins + 0.05,
        }

    def summary(self) -> dict[str, Any]:
        plan, record, servers = self.plan, self.record, self.servers
        begins, ends = self.distances()
        return {
            "promises": self.promises(),
            "broken": record.broken,
            "virtual days": plan.hours / DAY,
            "parameters": self.problem.dim,
            "lease seconds": LEASE_SECONDS,
            "arrivals": record.version,
            "models that clients were given": record.num_shown,
            "acknowledged updates": len(record.acknowledged),
            "of these lost": record.num_lost(),
            "rows": record.last_row,
            "rows by kind": dict(record.events),
            "leaders": 1 + record.events["resumed"],
            "rows written by a server that did not lead": servers.num_fenced,
            "leases that changed hands before their end": servers.num_early(),
            "seconds without a leader": spread(servers.seconds),
            "disturbed at hour": [round(hour, 2) for hour in self.disturbed_at],
            "standbys killed": servers.num_standbys_killed,
            "rotations of keys": self.num_rotations,
            "replaced keys that were tried and refused": self.num_old_keys_refused,
            "verified and audited meanwhile": self.num_reviews,
            "times a client came back": self.num_returns,
            "honest clients with a vote at the end": self._honest_with_votes(),
            "attacks": [
                {"sends": each.sends, "hours": [each.begins, each.ends], **record.accepted(each.begins, each.ends)}
                for each in plan.attacks
            ],
            "quiet part": {
                "from hour": plan.quiet_from,
                "distance at its start": begins,
                "distance at its end": ends,
                **record.accepted(plan.quiet_from, plan.hours),
            },
            "most on disk": {name: {"seen": seen, "bound": bound} for name, (seen, bound) in self.bounds().items()},
            "growth": [
                {"of": g.name, "samples": g.num_samples, "before": g.before, "after": g.after, "allowed": g.allowed}
                for g in self.samples.growth(self._full_since())
            ],
        }


@contextlib.contextmanager
def soaked(postgres: PostgresServer, plan: Plan, **options: Any) -> Iterator[Soak]:
    """A run that has gone through the plan."""
    postgres.tune("autovacuum_naptime", "2s")  # time is compressed
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        found = Soak(postgres, plan, Path(folder), **options)
        try:
            found.begin()
            found.live()
            found.end()
            yield found
        finally:
            found.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=40.0, help="real time for the week")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="keep the figures here (JSON), and a picture beside it"
    )
    chosen = parser.parse_args(arguments)
    about = {
        "command": "python -m tests.end_to_end.soak --minutes N --clients N --out FILE",
        "commit": commit(),
        "seed": chosen.seed,
        "minutes": chosen.minutes,
        "clients": chosen.clients,
    }
    per_day = max(1, min(4, int(chosen.minutes * 60.0 / 7.0 / 25.0)))
    options = {"minutes": chosen.minutes, "num_clients": chosen.clients, "seed": chosen.seed}
    with running(fsync=True) as postgres, soaked(postgres, week(per_day), **options) as soak:
        found = {**about, **soak.summary()}
    text = json.dumps(found, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")
    if chosen.out is not None:
        from tests.end_to_end.soak_plot import draw

        columns = soak.samples.columns()
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items())
        chosen.out.write_text(f'{text[:-2]},\n  "samples": {{\n{lines}\n  }}\n}}\n')
        draw(soak.plan, columns, soak.disturbed_at, chosen.out.with_suffix(".png"))
    return 0 if all(found["promises"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
