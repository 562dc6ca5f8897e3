"""An S3-compatible store of the tests' own: moto's server, a process on a free port of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest import mock

import boto3

BUCKET = "runs"
PATIENCE = 120.0
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}


class S3Server:
    """One server with one bucket. What is in it is in its memory: it ends with the process."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()
        self.client.create_bucket(Bucket=BUCKET)

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=PATIENCE):
                    return
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, "moto's server does not answer"
                assert self._process.poll() is None, "moto's server ended"
                time.sleep(0.1)

    @property
    def client(self) -> Any:
        """A client of its own, for those who do something behind a run's back."""
        with mock.patch.dict(os.environ, self.environment):
            return boto3.client("s3")

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def serving() -> Iterator[S3Server]:
    """A server for the time of some tests."""
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()
