"""Nodes of a Ray cluster, each a set of real processes on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray
from tests.end_to_end.child_processes import (
    HOST,
    Process,
    ProcessFailedError,
    end_processes,
    find_processes,
    free_port,
)

SCRIPT = Path(sys.executable).with_name("ray")
START_SECONDS = 120.0
ATTEMPTS = 4
READY = "Ray runtime started."
PORTS = ("runtime-env-agent", "dashboard-agent-grpc", "dashboard-agent-listen", "metrics-export")


class Node:
    """One node: `ray start --block`, and all that it started, known by a mark in its environment."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self._name = name
        self._folder = folder
        self._arguments = arguments
        self._mark = f"SECUREAFL_TEST_NODE={folder}/{name}"
        self._process: Process | None = None

    def start(self) -> None:
        """Start it and wait for it. Ray gives its parts some seconds to start, which a busy machine may not have."""
        for attempt in range(1, ATTEMPTS + 1):
            self._process = process = self._launch()
            try:
                process.wait_ready(lambda log=process.log: READY in log.read_text(errors="replace"), START_SECONDS)  # type: ignore[misc]
                return
            except ProcessFailedError:
                self.stop()
                if attempt == ATTEMPTS:
                    raise

    def _launch(self) -> Process:
        key, _, value = self._mark.partition("=")
        command = [
            str(SCRIPT),
            "start",
            "--block",
            "--num-cpus=1",
            "--disable-usage-stats",
            f"--node-ip-address={HOST}",
        ]
        command += ["--object-store-memory=100000000", "--include-log-monitor=false", *self._arguments]
        command += [f"--{port}-port={free_port()}" for port in PORTS]
        return Process(command, {**os.environ, key: value}, self._folder / f"{self._name}.log")

    def kill(self) -> None:
        """SIGKILL to all of it at once, as when a machine loses its power."""
        for pid in find_processes(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End all of it."""
        if self._process is not None:
            self._process.kill()
        end_processes(self._mark)


class Cluster:
    """A head and one more node."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"{HOST}:{port}"
        alone = ["--include-dashboard=false", "--no-monitor"]
        alone += [f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}/ray"]
        self.nodes = [
            Node("head", folder, "--head", f"--port={port}", *alone),
            Node("second", folder, f"--address={self.address}"),
        ]

    def start(self) -> None:
        """Start both, the head first."""
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        """End both."""
        for node in self.nodes[::-1]:
            node.stop()


@contextlib.contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Two nodes, gone afterwards. Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="sa-"))
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
