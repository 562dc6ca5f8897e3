"""One seed, one run: a whole server among failing clients on a failing disk, with its promises checked.

A run goes through several servers, one after the other. Each ends by a crash, a failed write, or the run's end. After
each one the files are held against what it promised; now and then a copy of them is damaged, to see that the damage is
named or does no harm. The last server runs on a disk without faults, and has to finish.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tests.simulation.carrier import KINDS, TTL_SECONDS, Clock, Dispatch, SimulatedCarrier
from tests.simulation.disk import Crash, FaultyDisk, Medium, Plan, kind_of
from tests.simulation.ledger import BrokenPromise, Ledger, insist, state_of
from tests.simulation.vfs import Connections
from tests.support import Quadratic

from secureafl import Layout, Machine, files
from secureafl.engines.engine_settings import EngineSettings
from secureafl.engines.sessions import Pace, SessionPool
from secureafl.errors import FederationError, StoreError
from secureafl.files import load_state
from secureafl.server import Assignment, Federation
from secureafl.server.record.entries import Entry, Event
from secureafl.server.record.folder import DATABASE, FolderStore
from secureafl.server.record.sqlite import read_journal
from secureafl.server.record.store import MODEL
from secureafl.types import Verdict
from secureafl.wire import Reply

MAX_SERVERS = 6
DIM = 8
MAX_DRIVES = 20_000  # a run that takes more turns than this hangs


@dataclass
class Report:
    """What happened in one run."""

    seed: int
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    broken: str = ""

    def say(self, event: str) -> None:
        self.events.append(event)


class Scenario:
    """What a seed decides before anything happens."""

    def __init__(self, rng: np.random.Generator, run_dir: Path) -> None:
        def sometimes(share: float, low: int, high: int) -> int | None:
            return int(rng.integers(low, high)) if rng.random() < share else None

        num_clients = int(rng.integers(2, 7))
        kinds = ["fast", *rng.choice(KINDS, num_clients - 1).tolist()]
        self.kinds = {f"{kind}-{place}": kind for place, kind in enumerate(kinds)}
        self.problem = Quadratic(num_clients, DIM, seed=int(rng.integers(1000)))
        self.layout = Layout.of({"w": np.zeros(DIM, np.float32)})
        self.settings: dict[str, Any] = {
            "run_dir": run_dir,
            "defense": str(rng.choice(["asyncsgd", "secureafl"])),
            "client_returns": "gradient",
            "server_lr": 0.05,
            "journal": str(rng.choice(["full", "full", "verdicts"])),
            "snapshot_every": int(rng.integers(3, 12)),
            "keep_snapshots": int(rng.integers(1, 4)),
            "keep_rows": sometimes(0.2, 5, 80),
            "keep_seconds": None if rng.random() < 0.9 else float(rng.uniform(1.0, 60.0)),
            "max_journal_bytes": sometimes(0.2, 0, 1000),
            "max_in_flight": sometimes(0.4, 1, 4),
            "stall_seconds": 1e9,  # so that the limit holds at any time
            "max_staleness": sometimes(0.3, 0, 6),
            "max_refusals": sometimes(0.7, 1, 6),
            "max_failures": sometimes(0.3, 1, 4),
            "hold_seconds": 0.0 if rng.random() < 0.7 else 1.0,
            "stop_after_updates": int(rng.integers(20, 81)),
            "stop_after_seconds": 900.0,
            "progress_seconds": float(rng.uniform(1.0, 20.0)),
            "ttl_seconds": TTL_SECONDS,
            "max_retry_seconds": 30.0,
        }

    def engine_settings(self, *, resume: bool) -> EngineSettings:
        return EngineSettings(**self.settings, resume=resume)

    def machine(self) -> Machine:
        settings = self.engine_settings(resume=False)
        return Machine(settings.make_defense(DIM, seed=1), np.zeros(DIM, np.float32), settings.machine())


class SimulatedFederation(Federation):
    """A federation that drives its own clients while it has nothing to judge, and that tells the ledger all it does."""

    def __init__(self, scenario: Scenario, ledger: Ledger, disk: FaultyDisk, connect: Connections, **more: Any) -> None:
        settings = scenario.engine_settings(resume=more.pop("resume"))
        assert isinstance(settings.run_dir, Path)
        store = FolderStore(settings.run_dir, connect=connect, disk=disk)
        super().__init__(scenario.machine(), scenario.layout, settings, seed=1, store=store, **more)
        self.drive: Callable[[], None] = lambda: None
        self._ledger = ledger
        append = self.journal.append

        def told(entry: Entry, *, durable: bool = True) -> None:
            ledger.append(entry, self.journal.head.number + 1)
            append(entry, durable=durable)

        setattr(self.journal, "append", told)  # noqa: B010 - mypy allows no assignment to a method

    @property
    def machine(self) -> Machine:
        return self._machine

    def _patience(self) -> float:
        if self._updates.empty():
            self.drive()
        return 0.0

    def _take(self, assignment: Assignment, update: Reply, done: Future[Verdict]) -> None:
        self._ledger.at_hand = update
        super()._take(assignment, update, done)

    def deliver(self, assignment: Assignment, update: Reply) -> Future[Verdict]:
        def acknowledged(done: Future[Verdict]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._ledger.acknowledge(assignment.ticket, done.result())

        done = super().deliver(assignment, update)
        done.add_done_callback(acknowledged)
        return done

    def last_resumption(self) -> str:
        return [entry.reason for entry in self.journal.entries(Event.RESUMED)][-1]

    def release_folder(self) -> None:
        """As the operating system does when a process dies."""
        self._run._let_go()


class Server:
    """One server of the run, from its start to its end."""

    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self._simulation = simulation
        self.disk = FaultyDisk(simulation.medium, plan)
        self.connections = Connections(self.disk)
        self._federation: SimulatedFederation | None = None
        self._broken: BrokenPromise | None = None
        self._is_over = False

    def live(self, *, resume: bool) -> str:
        """Run until something ends it; returns how it ended."""
        before = _open_files()
        try:
            outcome = self._live(resume=resume)
        finally:
            closed = self.connections.num_open == self.disk.num_open == 0
            if self.disk.crashed:
                self._let_go()
        if self._broken is not None:
            raise self._broken
        insist(closed or self.disk.crashed, f"files were left open after: {outcome}")
        insist(_open_files() <= before, f"{_open_files() - before} files more are open after: {outcome}")
        insist(threading.active_count() == self._simulation.num_threads, "a thread was left behind")
        return outcome

    def _live(self, *, resume: bool) -> str:
        try:
            self._start(resume=resume)
            return self._work()
        except Crash:
            return "crash"
        except (StoreError, FederationError) as error:
            if self.disk.crashed:
                return "crash"
            insist("\n" not in str(error), f"not one line: {error}")
            insist(bool(self.disk.faults), f"nothing failed, and yet: {error}")
            return f"{type(error).__name__}: {error}".replace(str(self._simulation.run_dir), "RUN")

    def _start(self, *, resume: bool) -> None:
        simulation = self._simulation
        ledger = simulation.ledger
        expected = ledger.expectation()
        ledger.begin(expected)
        self._federation = federation = SimulatedFederation(
            simulation.scenario, ledger, self.disk, self.connections, resume=resume, clock=simulation.clock
        )
        if resume:
            try:
                ledger.resumed(federation.machine, federation.last_resumption(), expected)
                federation.withdraw_all("the server restarted")
            except BaseException:
                federation.close()
                raise

    def _work(self) -> str:
        simulation, federation = self._simulation, self._federation
        assert federation is not None
        carrier = SimulatedCarrier(
            simulation.scenario.kinds,
            simulation.scenario.problem,
            simulation.clock,
            self.disk,
            simulation.rng,
            self._on_send,
        )
        carrier.federation = federation
        pace = Pace(min_clients=1, num_workers=0, poll_seconds=0.5, max_poll_seconds=2.0)
        self._pool: SessionPool[Dispatch] = SessionPool(
            carrier, federation, simulation.scenario.engine_settings(resume=False), pace, clock=simulation.clock
        )
        self._num_drives = 0
        federation.drive = self._drive
        try:
            federation.run()
            insist(not self.disk.must_stop, f"a write failed, and the run went on: {dict(self.disk.faults)}")
            simulation.final = state_of(federation.machine)
            return "finished"
        finally:
            self._run_on()
            simulation.report.counts += carrier.happened
            self._pool.close()
            federation.close()

    def _drive(self) -> None:
        """Let clients and the engine do what is due, then let time pass up to what comes next."""
        simulation, federation = self._simulation, self._federation
        assert federation is not None
        due = self._pool.advance()
        if self._broken is not None:
            raise self._broken
        self.disk.alive()
        self._check_sizes(federation)
        if simulation.rng.random() < 0.01:
            simulation.try_second_server()
        simulation.clock.now = max(due, simulation.clock.now + 0.001)
        self._num_drives += 1
        insist(self._num_drives < MAX_DRIVES, "the run hangs")

    def _run_on(self) -> None:
        """Engines take a while to notice that a run is over: nobody may be handed a model meanwhile."""
        self._is_over = True
        for _ in range(3):
            if not self.disk.crashed:
                self._simulation.clock.now += TTL_SECONDS
                self._pool.advance()

    def _check_sizes(self, federation: SimulatedFederation) -> None:
        machine, settings = federation.machine, federation.settings
        num_open = len(machine.open_tickets)
        insist(sum(machine._uses.values()) == num_open, "the machine counts tickets that are not open")
        insist(len(machine._held) <= num_open + machine.settings.keep_recent + 1, "the machine holds too many models")
        insist(len(self._pool._schedule._heap) <= len(self._simulation.scenario.kinds), "too many sessions are queued")
        limit = getattr(settings, "max_in_flight", None)
        insist(limit is None or num_open <= limit, f"{num_open} clients hold the model, max_in_flight is {limit}")

    def _on_send(self, assignment: Assignment) -> None:
        """Checked where models are handed out. The pool takes a carrier's errors for the engine's: keep them."""
        if self._broken is None and self.disk.must_stop:
            self._broken = BrokenPromise(f"a model was handed out after a failed write: {dict(self.disk.faults)}")
        if self._broken is None and self._is_over:
            self._broken = BrokenPromise("a model was handed out after the run's end")
        self._simulation.ledger.hand_out(assignment.params)

    def _let_go(self) -> None:
        """What the operating system does for a process that died."""
        self.connections.close_all()
        self.disk.close_all()
        if self._federation is not None:
            self._federation.release_folder()


class Simulation:
    """One run, by its seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.report = Report(seed)
        self.rng = np.random.default_rng(seed)
        self.run_dir = folder / "run"
        self.scenario = Scenario(self.rng, self.run_dir)
        self.medium = Medium()
        self.clock = Clock()
        self.ledger = Ledger(self.run_dir, self.scenario.settings["journal"], self.scenario.machine)
        self.num_threads = threading.active_count()
        self.final: dict[str, bytes] = {}

    def run(self) -> Report:
        try:
            with mock.patch.object(files, "LOCK_PATIENCE", -1.0):
                self._run()
        except BrokenPromise as broken:
            self.report.broken = str(broken)
        except Exception as error:  # a raw error is a broken promise too
            self.report.broken = f"raw {type(error).__name__}: {error}"
        return self.report

    def _run(self) -> None:
        for place in range(MAX_SERVERS):
            is_last = place == MAX_SERVERS - 1
            outcome = self._one_server(Plan() if is_last else Plan.draw(self.rng))
            if outcome == "finished" and (is_last or self.rng.random() < 0.5):
                break
        insist(outcome == "finished", f"a server without faults ended with: {outcome}")
        saved = load_state(self.run_dir / MODEL)["w"]
        insist(saved.shape == (DIM,), "the final model has another shape")

    def _one_server(self, plan: Plan) -> str:
        resume = self._can_resume()
        server = Server(self, plan)
        try:
            outcome = server.live(resume=resume)
        finally:
            self.report.counts += server.disk.faults
            self.report.counts["disk calls"] += server.disk.num_calls
        self.report.say(f"{'resumed' if resume else 'started'}: {outcome} after {server.disk.num_calls} disk calls")
        self.report.counts["server " + outcome.partition(":")[0]] += 1
        if outcome == "crash" and self.rng.random() < 0.8:
            lost = self.medium.lose_power(self.rng)
            self.report.counts += lost
            self.report.say(f"power cut: {dict(lost)}")
        elif num_files := self.medium.evict() if self.rng.random() < 0.5 else 0:
            self.report.counts["failed sync shows"] += 1
            self.report.say(f"what a failed sync dropped is gone from {num_files} files")
        if self._can_resume():
            self.ledger.check()
            if self.rng.random() < 0.4:
                self._damage_a_copy()
        return outcome

    def _can_resume(self) -> bool:
        """Whether the folder holds a run; one that no client got a model from may never have begun."""
        if self.ledger.was_used:
            return True
        try:
            read_journal(self.run_dir / DATABASE).close()
            self.ledger.read()
        except (StoreError, OSError):
            return False
        return True

    def try_second_server(self) -> None:
        """Another server asks for the folder: it must be refused."""
        self.report.counts["second server"] += 1
        try:
            settings = self.scenario.engine_settings(resume=True)
            second = Federation(self.scenario.machine(), self.scenario.layout, settings, seed=1)
        except StoreError as error:
            insist("is in use by" in str(error), f"a second server was told: {error}")
            return
        second.close()
        raise BrokenPromise("a second server was let into the folder")

    def _damage_a_copy(self) -> None:
        """Flip bits in a file, or cut it: what is read then is as before, or the damage is named."""
        image, before = self.medium.image(), self.ledger.read()
        if before[2] < max(before[0], default=0):  # rows that nobody was told of: no one can tell whether they are lost
            return
        victims = [path for path in image if image[path] and path.name != MODEL]
        path = victims[int(self.rng.integers(len(victims)))]
        self.medium.restore({**image, path: damaged(image[path], self.rng)})
        self.report.counts[f"damage to {kind_of(path)}"] += 1
        try:
            self.report.counts["damage " + self._judge_damage(before)] += 1
        finally:
            self.medium.restore(image)

    def _judge_damage(self, before: tuple[dict[int, Entry], int, int]) -> str:
        try:
            insist(self.ledger.read()[:2] == before[:2], "damage changed what the log says, and was not noticed")
            expected, server = self.ledger.expectation(), Server(self, Plan())
            federation = SimulatedFederation(
                self.scenario, self.ledger, server.disk, server.connections, resume=True, clock=self.clock
            )
        except StoreError as error:
            insist("\n" not in str(error), f"not one line: {error}")
            return "named"
        try:
            self.ledger.check_resumed(federation.machine, federation.last_resumption(), expected)
        finally:
            federation.close()
        return "harmless"


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """The same with a few bits flipped, or cut."""
    if rng.random() < 0.2:
        return content[: int(rng.integers(len(content)))]
    flipped = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        flipped[int(rng.integers(len(flipped)))] ^= 1 << int(rng.integers(8))
    return bytes(flipped)


def _open_files() -> int:
    shown = Path("/proc/self/fd")
    return sum(1 for _ in shown.iterdir()) if shown.exists() else 0


def fast_folder() -> Path | None:
    """Where files cost little: in memory, if the system has such a place."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


def simulate(seed: int) -> Report:
    """The run of this seed."""
    folder = Path(tempfile.mkdtemp(prefix="secureafl-", dir=fast_folder()))
    try:
        return Simulation(seed, folder).run()
    finally:
        shutil.rmtree(folder)
