"""ClientApps that start at once: what they import is imported once, and each message's process is a fork of that.

A SuperNode starts the command `flwr-clientapp` for every message. It imports Flower, and the app imports PyTorch: some
seconds of processor time before training begins. Here a SuperNode runs as a child of a process that has imported all
that before. Its PATH begins with a folder in which `flwr-clientapp` is a script that only asks this process for a fork:

    flower-supernode  ->  flower-superexec  ->  flwr-clientapp (the script)  --socket-->  this process  ->  a fork

Of Flower only that command is relied upon, its name and that its arguments are its own. Each message still has a
process of its own, which ends with it, so what one run of the app leaves in memory no other sees.

What is imported beforehand may not start threads: a fork has none of them.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from secureafl.errors import SettingsError

CLIENT_APP = "flwr-clientapp"
ENTRY = "flwr.supernode.cli.flwr_clientapp"
"""Where Flower keeps that command's function, `flwr_clientapp`."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0
"""What a ClientApp whose SuperNode has ended may still take before it is killed."""

_COMMAND = """#!/bin/sh
exec {python} -IS {script} "$@"
"""
_SCRIPT = """import json, os, socket, sys
command = [{command!r}, *sys.argv[1:]]
asking = socket.socket(socket.AF_UNIX)
try:
    asking.connect({socket!r})
except OSError:  # nobody forks any more: as it was before
    os.environ["PATH"] = os.environ["PATH"].partition(os.pathsep)[2]
    os.execvp(command[0], command)
asking.sendall(json.dumps(command).encode())
asking.shutdown(socket.SHUT_WR)
sys.exit(int(asking.recv(16) or b"1"))
"""


def run_warm(command: Sequence[str], imports: Sequence[str]) -> int:
    """Run `command`, a SuperNode or a SuperExec, with ClientApps forked from a process that has imported `imports`.

    Returns the command's exit code; a signal that would end this process ends the command instead.
    """
    with tempfile.TemporaryDirectory(prefix="secureafl-") as name, socket.socket(socket.AF_UNIX) as listener:
        directory = Path(name)
        listener.bind(str(directory / "socket"))
        listener.listen(128)
        _write_command(directory)
        path = f"{directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        try:
            child = subprocess.Popen(command, env={**os.environ, "PATH": path})
        except OSError as error:
            raise SettingsError(f"cannot start {command[0]!r}: {error.strerror}") from None
        forked: list[int] = []
        try:
            _hand_signals_to(child)
            _import_all([ENTRY, *imports])
            _fork_for(listener, child, forked)
        finally:
            if child.poll() is None:
                child.terminate()
            code = child.wait()
            _end(forked)
        return code


def _write_command(directory: Path) -> None:
    """What a SuperExec finds in place of Flower's command."""
    script, command = directory / "ask.py", directory / CLIENT_APP
    script.write_text(_SCRIPT.format(command=CLIENT_APP, socket=str(directory / "socket")))
    command.write_text(_COMMAND.format(python=shlex.quote(sys.executable), script=shlex.quote(str(script))))
    command.chmod(0o700)


def _hand_signals_to(child: subprocess.Popen[bytes]) -> None:
    """Who stops us stops the command, and we end when it has. Ctrl-C reaches it anyway."""

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, lambda number, frame: None)


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        before = threading.active_count()
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(f"cannot import {name!r}: {error}; install it here, or do not name it") from None
        if threading.active_count() > before:
            raise SettingsError(
                f"{name!r} starts a thread when it is imported, which no fork would have: do not name it"
            )


def _fork_for(listener: socket.socket, child: subprocess.Popen[bytes], forked: list[int]) -> None:
    """Fork for everyone who asks, until the command has ended; `forked` has who has not."""
    listener.settimeout(POLL_SECONDS)
    while child.poll() is None:
        forked[:] = _alive(forked)
        try:
            asking, _ = listener.accept()
        except TimeoutError:
            continue
        with asking:
            sys.stdout.flush()
            sys.stderr.flush()
            if (pid := os.fork()) == 0:
                listener.close()
                _be_client_app(asking)
            forked.append(pid)


def _alive(forked: Sequence[int]) -> list[int]:
    """Who has not ended; of who has, nothing is left in the system's table."""
    return [pid for pid in forked if os.waitpid(pid, os.WNOHANG) == (0, 0)]


def _end(forked: Sequence[int]) -> None:
    """A ClientApp without its SuperNode may try to reach it for ever: no one is left to answer."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (forked := _alive(forked)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_client_app(asking: socket.socket) -> NoReturn:
    """In the fork: do what the command would have done, and tell its exit code to the script that asked."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asking.settimeout(None)
        request = b"".join(iter(lambda: asking.recv(65536), b""))
        sys.argv = json.loads(request)
        sys.modules[ENTRY].flwr_clientapp()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            asking.sendall(str(code).encode())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
