import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.lab.real_data import RealData
from tests.lab.tiny import write_tiny_fashion
from tests.postgres import PostgresServer, Tamper, is_installed, running

from secureafl.kernels import compiling
from secureafl.server.record.address import Place, RunUrl

# Processes that tests start are often given a cache folder of their own; they need not compile kernels anew for that.
os.environ.setdefault("NUMBA_CACHE_DIR", str(compiling.folder()))

# The first example of a property may compile kernels; how long it takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`-n 2 --dist loadgroup`), tests that start processes of their own take turns on one."""
    for item in items:
        if item.get_closest_marker("end_to_end"):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session")
def load_real(request: pytest.FixtureRequest) -> RealData:
    """Loads real data sets. What was decoded stays in pytest's cache, so that only the first run takes time."""
    return RealData(request.config.cache.mkdir("data-sets"))


@pytest.fixture
def tiny_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of its own, decoded into a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_tiny_fashion(tmp_path / "data")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL, started when the first test needs it."""
    if not is_installed():
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with running() as server:
        yield server


@pytest.fixture
def run_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> RunUrl:
    """A run in a database that no other test has."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)
    return postgres.url(f"{abs(hash(request.node.nodeid)) % 10**8}-{name}"[:40])


@pytest.fixture(params=["folder", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a run can be kept: whatever holds for one kind of place holds for the other."""
    if request.param == "folder":
        return tmp_path / "run"
    url: RunUrl = request.getfixturevalue("run_url")
    return url


@pytest.fixture
def tamper(request: pytest.FixtureRequest, place: Place) -> Tamper:
    """Do something to the tables of the run in `place`, behind its server's back."""

    def execute(statement: str) -> list[tuple[Any, ...]]:
        if isinstance(place, RunUrl):
            server: PostgresServer = request.getfixturevalue("postgres")
            return server.execute(place, statement)
        with contextlib.closing(sqlite3.connect(place / "run.db")) as database, database:
            return database.execute(statement).fetchall()

    return execute
