"""Child processes for end-to-end tests: own group, own log file, readiness, and no leftovers (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

HOST = "127.0.0.1"
GRACE_SECONDS = 15.0


class ProcessFailedError(RuntimeError):
    """A process or command did not do what it was started for; the message ends with the tail of its log."""


class Process:
    """One process in its own group, logging to a file."""

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path, cwd: Path | None = None) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._popen = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None as long as it lives."""
        return self._popen.poll()

    def stop(self) -> None:
        """SIGTERM to the process, then SIGKILL to what is left of its group."""
        if self._popen.poll() is None:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group, as when a machine loses its power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(GRACE_SECONDS)

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not ready():
            if (code := self._popen.poll()) is not None:
                raise ProcessFailedError(f"exited with {code} before it was ready\n{tail(self.log)}")
            if time.monotonic() > deadline:
                raise ProcessFailedError(f"not ready after {timeout} s\n{tail(self.log)}")
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def tail(log: Path, lines: int = 40) -> str:
    return f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def end_processes(marker: str) -> None:
    """SIGTERM, then SIGKILL, to every process whose environment holds `marker`."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in find_processes(marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while find_processes(marker) and time.monotonic() < deadline:
            time.sleep(0.05)


def find_processes(marker: str) -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _holds(entry, marker)]


def _holds(entry: Path, marker: str) -> bool:
    try:
        return marker.encode() in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile, or not ours
        return False


def command_line(pid: int) -> str:
    """The words a process was started with; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
