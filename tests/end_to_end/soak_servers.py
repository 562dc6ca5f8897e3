"""The servers of the soak: a leader, a standby, the database, and what is done to them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from tests.end_to_end.child_processes import HOST, Process, end_processes, free_port
from tests.end_to_end.failover import WATCH
from tests.end_to_end.soak_wire import Message, receive, send
from tests.end_to_end.tcp_proxy import Link
from tests.postgres import USER, PostgresServer

from secureafl.server.record.address import store_of

ROOT = Path(__file__).parents[2]
SECUREAFL = [sys.executable, "-c", "from secureafl.cli import app; app()"]
STANDBY_KILLED = "standby killed"


@dataclass(eq=False)
class Leader:
    """A server that has connected: it leads, led, or is about to."""

    number: int
    pid: int
    connection: Connection
    link: Link
    metrics_port: int
    outgoing: queue.SimpleQueue[Message | None] = field(default_factory=queue.SimpleQueue)
    gone: bool = False


class Servers:
    """Starts them, disturbs them, and sees who leads."""

    def __init__(
        self,
        postgres: PostgresServer,
        name: str,
        folder: Path,
        told: Mapping[str, Any],
        present: Callable[[], list[str]],
        heard: Callable[[Leader, Message], None],
    ) -> None:
        """`told` is what a server is told when it connects, `present` who is there then. What servers say is `heard` on
        a thread of each.
        """
        self.postgres = postgres
        self.url = postgres.url(name)
        self._folder, self._told, self._present, self._heard = folder, told, present, heard
        self.leaders: list[Leader] = []
        self.standby: Process | None = None
        self.standby_port = 0
        self._processes: list[Process] = []
        self._newest: Leader | None = None
        self._disturbed: tuple[str, Leader, float] | None = None
        self.seconds: dict[str, list[float]] = {}
        """Kind of disturbance -> from it to the first model that the next leader handed out."""
        self.num_standbys_killed = 0
        self._writers: dict[int, str] = {}  # epoch -> who wrote under it
        self._last_epoch = 0
        self.num_fenced = 0
        """Rows that another server wrote than the one that led."""
        self._listener = Listener(str(folder / "clients"), family="AF_UNIX")
        self._command = [sys.executable, "-m", "tests.end_to_end.soak_worker", str(folder / "clients")]
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "SECUREAFL_SOAK": str(folder), "PYTHONPATH": paths}
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def leader(self) -> Leader | None:
        """Who hands out models, if it is still there."""
        return None if self._newest is None or self._newest.gone else self._newest

    @property
    def is_disturbed(self) -> bool:
        """Whether a leader was, and nobody has taken over yet."""
        return self._disturbed is not None

    @property
    def is_ready(self) -> bool:
        """Whether somebody leads, and a standby can take over."""
        if self.is_disturbed or self.leader is None or self.standby is None:
            return False
        name = f"pid {self.standby.pid} on {socket.gethostname()}"
        return any(report.name == name and report.can_lead for report in store_of(self.url).standbys())

    @property
    def logs(self) -> list[Path]:
        """Of the newest processes."""
        return [process.log for process in self._processes[-3:]]

    def start_leader(self) -> None:
        self._start("leader", self._command)

    def start_standby(self) -> None:
        self.standby_port = free_port()
        options = [str(self.url), f"--metrics-port={self.standby_port}"]
        self.standby = self._start("standby", [*SECUREAFL, "standby", *options, "--", *self._command, "--resume"])

    def watch(self) -> None:
        """Let the database itself note who writes what, and when the lease changes hands."""
        for statement in WATCH:
            self.postgres.execute(self.url, statement)

    def _start(self, name: str, command: Sequence[str]) -> Process:
        process = Process(list(command), self.environment, self._folder / f"{name}-{len(self._processes)}.log")
        self._processes.append(process)
        return process

    def _accept(self) -> None:
        """Each server has a link of its own to the database, which can be cut."""
        with contextlib.suppress(OSError):  # closed
            while True:
                connection = self._listener.accept()
                with contextlib.suppress(EOFError, OSError):
                    self._welcome(connection)

    def _welcome(self, connection: Connection) -> None:
        said, _ = receive(connection)
        leader = Leader(len(self.leaders), said["pid"], connection, Link(self.postgres.port), free_port())
        name = f"leader-{leader.number}"
        url = f"postgresql://{USER}@{HOST}:{leader.link.port}/runs/{self.url.name}?application_name={name}"
        settings = {**self._told["settings"], "run_dir": url, "metrics_port": leader.metrics_port}
        send(connection, {**self._told, "settings": settings})
        self.leaders.append(leader)
        leader.outgoing.put(({"present": self._present()}, b""))
        threading.Thread(target=self._write_to, args=(leader,), daemon=True).start()
        threading.Thread(target=self._read_from, args=(leader,), daemon=True).start()

    def _write_to(self, leader: Leader) -> None:
        with contextlib.suppress(OSError):
            while (message := leader.outgoing.get()) is not None:
                send(leader.connection, *message)

    def _read_from(self, leader: Leader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._heard(leader, receive(leader.connection))
        leader.gone = True
        leader.outgoing.put(None)

    def tell(self, head: Mapping[str, Any]) -> None:
        """All servers that are there."""
        for leader in self.leaders:
            if not leader.gone:
                leader.outgoing.put((dict(head), b""))

    def note_model(self, leader: Leader) -> None:
        """This one hands out models: the newest that does so leads."""
        if leader is self._newest or (self._newest is not None and leader.number < self._newest.number):
            return
        self._newest = leader
        if self._disturbed is None:
            return
        kind, former, began = self._disturbed
        self._disturbed = None
        self.seconds.setdefault(kind, []).append(time.monotonic() - began)
        former.link.mend()
        if kind == "stopped" and not former.gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(former.pid, signal.SIGCONT)

    def disturb(self, kind: str) -> None:
        """When it `is_ready`."""
        leader, standby = self.leader, self.standby
        assert leader is not None
        assert standby is not None
        if kind == STANDBY_KILLED:  # the server that it started goes on
            os.kill(standby.pid, signal.SIGKILL)
            self.num_standbys_killed += 1
            self.start_standby()
            return
        self._disturbed = kind, leader, time.monotonic()
        if kind == "cut":
            leader.link.cut()
        else:
            os.kill(leader.pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)

    def note_writers(self) -> None:
        """Every row is written by the one server that leads under its epoch, and epochs go up."""
        found = self.postgres.execute(self.url, "DELETE FROM written RETURNING number, writer, epoch")
        for _, writer, epoch in sorted(found):
            self.num_fenced += self._writers.setdefault(epoch, writer) != writer or epoch < self._last_epoch
            self._last_epoch = max(epoch, self._last_epoch)

    def num_early(self) -> int:
        """Times that the lease changed hands before it had ended."""
        return int(self.postgres.execute(self.url, "SELECT count(*) FILTER (WHERE early) FROM handed_over")[0][0])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        end_processes(f"SECUREAFL_SOAK={self._folder}")
        self._listener.close()
        for leader in self.leaders:
            leader.link.close()
            leader.connection.close()
