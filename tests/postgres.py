"""A PostgreSQL server of the tests' own: a new cluster in a temporary folder, on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from secureafl.server.record.address import RunUrl

Tamper: TypeAlias = Callable[[str], list[tuple[Any, ...]]]
"""Does something to a run's tables, behind its server's back."""

USER = "secureafl"
INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
PATIENCE = 60.0


def program(name: str) -> str | None:
    """PostgreSQL's program of this name; None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join([*map(str, INSTALLED), os.environ.get("PATH", "")]))


def is_installed() -> bool:
    return program("initdb") is not None


class PostgresServer:
    """One server and its cluster. Clients connect without a password."""

    def __init__(self, folder: Path, *, fsync: bool = False, wal: Path | None = None) -> None:
        """`wal` is a folder for the write-ahead log alone."""
        self._fsync = "on" if fsync else "off"
        self._cluster = folder / "cluster"
        self._log = folder / "log"
        self._user: str | None = None
        if os.getuid() == 0:  # which the server refuses to run as
            self._user = "postgres"
            for each in filter(None, (folder, wal)):
                shutil.chown(each, self._user)
        elsewhere = [] if wal is None else [f"--waldir={wal / 'wal'}"]
        named = [f"--pgdata={self._cluster}", f"--username={USER}", *elsewhere]
        self._call("initdb", *named, "--auth=trust", "--no-sync", "--locale=C")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()
        with self.connect("postgres") as database:
            database.execute("CREATE DATABASE runs ENCODING 'UTF8' TEMPLATE template0")

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync={self._fsync}"
        timeout = f"--timeout={PATIENCE:.0f}"
        self._call("pg_ctl", "start", "-w", timeout, f"--pgdata={self._cluster}", f"--log={self._log}", "-o", options)
        self.pid = int((self._cluster / "postmaster.pid").read_text().split()[0])

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server, if it has not ended by itself; SIGINT ends its connections in order."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        deadline = time.monotonic() + PATIENCE
        while _lives(self.pid):
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def connect(self, database: str = "runs") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to one of its databases, in autocommit mode."""
        return psycopg.connect(f"postgresql://{USER}@127.0.0.1:{self.port}/{database}", autocommit=True)

    def tune(self, name: str, value: str) -> None:
        """Give one of its settings another value, while it runs."""
        with self.connect() as database:
            database.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            database.execute("SELECT pg_reload_conf()")

    @property
    def said(self) -> str:
        """Its log."""
        return self._log.read_text()

    def url(self, name: str) -> RunUrl:
        """The run of this name."""
        return RunUrl.parse(f"postgresql://{USER}@127.0.0.1:{self.port}/runs/{name}")

    def execute(self, url: RunUrl, statement: str) -> list[tuple[Any, ...]]:
        """Do this to the tables of a run, behind its server's back."""
        with self.connect() as database:
            database.execute(f'SET search_path TO "secureafl_{url.name}"')
            done = database.execute(statement)
            return done.fetchall() if done.description else []

    def _call(self, name: str, *arguments: str) -> None:
        found = program(name)
        assert found is not None, f"PostgreSQL's {name} is not installed"
        as_user = ["runuser", "-u", self._user, "--"] if self._user else []
        # Not to a pipe: the server keeps it open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run([*as_user, found, *arguments], stdout=said, stderr=said, cwd="/")
            said.seek(0)
            assert done.returncode == 0, said.read().decode()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def running(*, fsync: bool = False, folder: Path | None = None, wal: Path | None = None) -> Iterator[PostgresServer]:
    """A server for the time of some tests; `fsync` as in real life, where a power cut must lose nothing. Without a
    `folder`, in one of its own.
    """
    with tempfile.TemporaryDirectory(prefix="secureafl-postgres-", ignore_cleanup_errors=True) as own:
        server = PostgresServer(folder or Path(own), fsync=fsync, wal=wal)
        try:
            yield server
        finally:
            server.stop()
