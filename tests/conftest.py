import contextlib
import dataclasses
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.lab.real_data import RealData
from tests.lab.tiny import write_tiny_fashion
from tests.postgres import PostgresServer, Tamper, is_installed, running
from tests.s3 import BUCKET, S3Server, serving

from secureafl.kernels import compiling
from secureafl.server.record.address import Place, RunUrl
from secureafl.server.record.objects import objects_at

# Processes that tests start are often given a cache folder of their own; they need not compile kernels anew for that.
os.environ.setdefault("NUMBA_CACHE_DIR", str(compiling.folder()))

# The first example of a property may compile kernels; how long it takes says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With two workers (`-n 2 --dist loadgroup`), tests that start Flower take turns on one, and those that start other
    processes on one: what waits for Flower, which is slow to start, leaves a core to the others."""
    for item in items:
        if item.get_closest_marker("end_to_end"):
            item.add_marker(pytest.mark.xdist_group("flower" if _starts_flower(item) else "processes"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests that should take turns and do not would fail for want of time, now and then: better at once."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError(
            "this pytest-xdist does not know groups with this pytest: install those of pyproject.toml"
        )


def _starts_flower(item: pytest.Item) -> bool:
    imported = vars(item.getparent(pytest.Module).obj).values()  # type: ignore[union-attr]
    return any(getattr(thing, "__module__", None) == "tests.end_to_end.flower_processes" for thing in imported)


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


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real server that speaks S3, started when the first test needs it."""
    with serving() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket, and all that is needed to reach it."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/tests"


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the objects of a run in a database can be kept."""
    return str(tmp_path / "objects") if request.param == "folder" else request.getfixturevalue("bucket")


@pytest.fixture
def url_with_objects(run_url: RunUrl, objects: str) -> RunUrl:
    """A run in a database, with its bytes elsewhere."""
    return dataclasses.replace(run_url, objects=objects)


@pytest.fixture(params=["folder", "postgres", "postgres, objects in a folder", "postgres, objects in s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a run can be kept: whatever holds for one kind of place holds for the others."""
    if request.param == "folder":
        return tmp_path / "run"
    url: RunUrl = request.getfixturevalue("run_url")
    if request.param.endswith("folder"):
        return dataclasses.replace(url, objects=str(tmp_path / "objects"))
    if request.param.endswith("s3"):
        return dataclasses.replace(url, objects=request.getfixturevalue("bucket"))
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


@pytest.fixture
def alter_update(place: Place, tamper: Tamper) -> Callable[[int], None]:
    """Change the bytes of the update in one row, wherever they are."""

    def alter(number: int) -> None:
        if isinstance(place, RunUrl) and place.objects is not None:
            [(location, name)] = tamper(f"SELECT location, object FROM objects, updates WHERE number = {number}")
            objects = objects_at(location)
            objects.write(name, BytesIO(b"".join(objects.read(name))[1:]))
        else:
            tamper(f"UPDATE updates SET update_bytes = substr(update_bytes, 2) WHERE number = {number}")

    return alter
