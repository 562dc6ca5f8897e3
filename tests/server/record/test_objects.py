"""Updates and files of a run in a database that are kept elsewhere: in a folder, and in a real S3 server."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.tcp_proxy import Link
from tests.postgres import PostgresServer
from tests.s3 import S3Server
from tests.server.record.test_run import FACTS, advance, die, machine, settings, state, undisturbed
from tests.server.recorded_runs import record

from secureafl.errors import SettingsError, StoreError, UnreachableError
from secureafl.server.record.address import RunUrl, store_of
from secureafl.server.record.entries import Event
from secureafl.server.record.objects import FolderObjects, Objects, objects_at
from secureafl.server.record.postgres import PostgresStore, PostgresTables
from secureafl.server.record.run import Run, StoreSettings
from secureafl.server.review.verify import verify


class Behind:
    """What is behind a run's back: its rows and its objects."""

    def __init__(self, postgres: PostgresServer, url: RunUrl) -> None:
        self._execute: Callable[[str], list[tuple[Any, ...]]] = lambda statement: postgres.execute(url, statement)

    @property
    def objects(self) -> Objects:
        [(location,)] = self._execute("SELECT location FROM objects")
        return objects_at(location)

    def named(self) -> list[str]:
        """The objects that rows name."""
        union = "SELECT object FROM updates WHERE object IS NOT NULL UNION ALL SELECT object FROM files"
        return sorted(name for (name,) in self._execute(union))

    def kept(self) -> list[str]:
        """The objects that there are."""
        return sorted(self.objects.names(""))

    def object_of(self, row: int) -> str:
        [(name,)] = self._execute(f"SELECT object FROM updates WHERE number = {row}")
        return str(name)

    def count(self, what: str) -> int:
        return int(self._execute(f"SELECT count({what.partition(' ')[0]}) FROM {what.partition(' ')[2]}")[0][0])


@pytest.fixture
def behind(postgres: PostgresServer, run_url: RunUrl) -> Behind:
    return Behind(postgres, run_url)


class Outage:
    """Objects that can be taken away for a while."""

    def __init__(self, end: Callable[[], None], begin: Callable[[], None]) -> None:
        self.end, self.begin = end, begin


@pytest.fixture
def outage(objects: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """Use it before the run begins: for S3, the run has to go by a link that can be cut."""
    if not objects.startswith("s3://"):
        aside = Path(f"{objects}-aside")
        yield Outage(lambda: _move(aside, Path(objects)), lambda: _move(Path(objects), aside))
        return
    server: S3Server = request.getfixturevalue("s3")
    link = Link(server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
    yield Outage(link.mend, link.cut)
    link.close()


def _move(old: Path, new: Path) -> None:
    old.rename(new)


@pytest.fixture
def place_of_objects(objects: str) -> Objects:
    found = objects_at(f"{objects}/of-this-test")
    found.prepare()
    found.remove(found.names(""))
    return found


@pytest.mark.parametrize("size", [0, 5, 20 << 20])
def test_an_object_comes_back_as_it_was_written(place_of_objects: Objects, size: int) -> None:
    content = bytes(range(5)) * (size // 5)
    for _ in range(2):
        file = BytesIO(content)
        place_of_objects.write("updates/1.1.aa", file)
        assert not file.closed, "a second try needs it"
    assert b"".join(place_of_objects.read("updates/1.1.aa")) == content


def test_objects_are_listed_by_prefix_and_removed(place_of_objects: Objects) -> None:
    for name in ("updates/1", "updates/2", "updates/3", "files/a/1"):
        place_of_objects.write(name, BytesIO(b"1"))
    assert place_of_objects.names("") == ["files/a/1", "updates/1", "updates/2", "updates/3"]
    assert place_of_objects.names("updates/", after="updates/1") == ["updates/2", "updates/3"]
    place_of_objects.remove(["updates/2", "updates/9"])
    assert place_of_objects.names("updates/") == ["updates/1", "updates/3"]
    with pytest.raises(FileNotFoundError):
        list(place_of_objects.read("updates/2"))


@pytest.mark.slow
def test_more_than_a_thousand_objects_are_listed_and_removed(bucket: str) -> None:
    many = objects_at(f"{bucket}/many")
    names = [f"updates/{number:06d}" for number in range(1_010)]
    for name in names:
        many.write(name, BytesIO(b"1"))
    assert many.names("updates/") == names
    many.remove(names)
    assert many.names("") == []


def test_rows_hold_names_and_objects_the_bytes(url_with_objects: RunUrl, behind: Behind) -> None:
    run = Run(machine(), settings(url_with_objects), facts=FACTS)
    advance(run, 45)
    run.finish()
    run.close()
    assert behind.count("update_bytes updates") == behind.count("content files") == 0
    assert behind.count("object updates") > 30
    assert behind.kept() == behind.named()
    for name in behind.named():
        content = b"".join(behind.objects.read(name))
        assert hashlib.sha256(content).hexdigest() == name.rpartition(".")[2]
    resumed = Run.resume(machine(), settings(replace(url_with_objects, objects=None)), facts=FACTS)
    assert state(resumed) == undisturbed(45)
    resumed.close()


@pytest.mark.parametrize("kept", [{"keep_rows": 30}, {"max_journal_bytes": 1000}])
def test_what_is_forgotten_is_removed(kept: dict[str, int], url_with_objects: RunUrl, behind: Behind) -> None:
    run = Run(machine(), settings(url_with_objects, **kept), facts=FACTS)
    advance(run, 45)
    before = behind.kept()
    advance(run, 60)
    run.close()
    assert len(set(before) - set(behind.kept())) > 20
    assert behind.kept() == behind.named()
    assert behind.count("object discarded") == 0
    verify(url_with_objects)


def test_what_could_not_be_removed_is_removed_by_the_next_leader(
    url_with_objects: RunUrl, behind: Behind, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(machine(), settings(url_with_objects, keep_rows=30, snapshot_every=1000), facts=FACTS)
    advance(run, 45)

    def removing(self: object, names: object) -> None:
        raise ConnectionError("cut off")

    with monkeypatch.context() as cut_off:
        cut_off.setattr(type(behind.objects), "remove", removing)
        run.snapshot()
        run.snapshot()
    run.close()
    assert behind.count("object discarded") > 0
    assert set(behind.named()) < set(behind.kept())
    Run.resume(machine(), settings(url_with_objects), facts=FACTS).close()
    assert behind.count("object discarded") == 0
    assert behind.kept() == behind.named()


def test_the_object_is_durable_before_its_row_and_one_without_a_row_is_removed(
    url_with_objects: RunUrl, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(self: object) -> None:
        raise KilledError

    run = Run(machine(), settings(url_with_objects), facts=FACTS)
    advance(run, 25)
    with monkeypatch.context() as patched:
        patched.setattr(PostgresTables, "commit", killed)
        with pytest.raises(KilledError):
            advance(run, 1)
    [orphan] = set(behind.kept()) - set(behind.named())
    assert orphan.startswith(f"updates/{run.journal.head.number:012d}.1.")
    later = orphan.replace(".1.", ".7.")
    behind.objects.write("files/model.safetensors.1.00", BytesIO(b"a file that was never named"))
    behind.objects.write(later, BytesIO(b"of a later leader"))
    die(run)
    resumed = Run.resume(machine(), settings(url_with_objects), facts=FACTS)
    assert state(resumed) == undisturbed(25)
    advance(resumed, 5)
    assert state(resumed) == undisturbed(30)
    resumed.close()
    assert set(behind.kept()) - set(behind.named()) == {later}, "only earlier leaders cannot name theirs any more"


def test_a_missing_update_is_named_with_what_to_do(url_with_objects: RunUrl, behind: Behind) -> None:
    run = Run(machine(), settings(url_with_objects), facts=FACTS)
    advance(run, 30)
    run.close()
    [row] = [entry.number for entry in _entries(url_with_objects) if entry.version == 27 and entry.sent]
    behind.objects.remove([behind.object_of(row)])
    said = rf"the update in row {row} is missing: its object .*{row}\.1\.[0-9a-f]+ is gone: restore it from a backup"
    with pytest.raises(StoreError, match=said):
        verify(url_with_objects)
    with pytest.raises(StoreError, match=said):
        Run.resume(machine(), settings(url_with_objects), facts=FACTS)


def _entries(url: RunUrl) -> list[Any]:
    journal = store_of(url).read()
    found = list(journal.entries(Event.ARRIVAL))
    journal.close()
    return found


def test_a_changed_or_missing_snapshot_is_named_and_passed_over(url_with_objects: RunUrl, behind: Behind) -> None:
    run = Run(machine(), settings(url_with_objects), facts=FACTS)
    advance(run, 45)
    run.close()
    old, new = [name for name in behind.named() if name.startswith("files/snapshots/0")]
    behind.objects.write(new, BytesIO(b"something else"))
    with pytest.raises(StoreError, match=r"40\.safetensors: .*its object .* is not what was written, its hash"):
        verify(url_with_objects)
    behind.objects.remove([old])
    resumed = Run.resume(machine(), settings(url_with_objects), facts=FACTS)
    assert state(resumed) == undisturbed(45), "from the first model, then"
    [said] = [entry.reason for entry in resumed.journal.entries(Event.RESUMED)]
    assert "40.safetensors: its object " in said
    resumed.close()
    behind.objects.remove([new])
    with pytest.raises(StoreError, match=r"40\.safetensors: its object .* is gone: restore it from a backup"):
        verify(url_with_objects)


def test_objects_that_cannot_be_reached_end_the_run_and_nothing_is_lost(
    outage: Outage, url_with_objects: RunUrl
) -> None:
    run = Run(machine(), settings(url_with_objects), facts=FACTS)
    advance(run, 25)
    outage.begin()
    with pytest.raises(StoreError, match=r"the run's objects in .* cannot be written: "):
        advance(run, 1)
    with pytest.raises(StoreError, match="cannot be written"):
        run.issue("client-1")
    run.close()
    with pytest.raises(UnreachableError, match="cannot be read"):
        Run.resume(machine(), settings(url_with_objects), facts=FACTS)
    outage.end()
    resumed = Run.resume(machine(), settings(url_with_objects), facts=FACTS)
    assert state(resumed) == undisturbed(25)
    advance(resumed, 5)
    assert state(resumed) == undisturbed(30)
    resumed.close()


def test_a_patient_server_waits_for_its_objects(outage: Outage, url_with_objects: RunUrl) -> None:
    run = Run(machine(), settings(url_with_objects, database_patience=60.0), facts=FACTS)
    advance(run, 18)
    began = time.monotonic()
    outage.begin()
    threading.Timer(1.5, outage.end).start()
    advance(run, 5)  # also a snapshot
    assert time.monotonic() - began > 1.5
    assert state(run) == undisturbed(23)
    run.close()
    verify(url_with_objects)


def test_a_verdicts_run_is_not_begun_anew_because_its_snapshots_cannot_be_reached(
    outage: Outage, url_with_objects: RunUrl
) -> None:
    kept = settings(url_with_objects, journal="verdicts")
    run = Run(machine(), kept, facts=FACTS)
    advance(run, 45)
    run.close()
    outage.begin()
    with pytest.raises(UnreachableError, match="cannot be read"):
        Run.resume(machine(), kept, facts=FACTS)
    outage.end()
    resumed = Run.resume(machine(), kept, facts=FACTS)
    assert resumed.machine.model.version == 40
    resumed.close()


def test_nothing_is_written_where_nothing_is_mounted(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "mounted")
    with pytest.raises(ConnectionError, match="is not there: mount it, or restore it"):
        objects.write("updates/1", BytesIO(b"1"))
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_name_do_not_share_objects(run_url: RunUrl, tmp_path: Path, behind: Behind) -> None:
    """A run that was dropped leaves its objects; the next of its name leaves them alone."""
    url = replace(run_url, objects=str(tmp_path / "objects"))
    record(url, 5).journal.close()
    first = behind.objects.where
    with PostgresStore(run_url).connect() as database:
        database.execute(f'DROP SCHEMA "secureafl_{run_url.name}" CASCADE')
    record(url, 7).journal.close()
    assert behind.objects.where != first
    assert len(FolderObjects(Path(first)).names("updates/")) == 5


def test_a_run_that_never_began_leaves_no_objects(run_url: RunUrl, tmp_path: Path) -> None:
    store = PostgresStore(replace(run_url, objects=str(tmp_path / "objects")))
    for _ in range(2):
        hold = store.hold()
        store.clear()
        store.files.write("snapshots/first.safetensors", [b"of a server that died before its run began"])
        hold.release()
    assert len([path for path in (tmp_path / "objects").rglob("*") if path.is_file()]) == 1


def test_who_resumes_a_run_may_say_where_its_objects_are_and_has_to_be_right(run_url: RunUrl, tmp_path: Path) -> None:
    right, wrong = str(tmp_path / "objects"), str(tmp_path / "elsewhere")
    Run(machine(), settings(run_url, objects=right), facts=FACTS).close()
    with pytest.raises(StoreError, match=f"was started with objects = '{right}', not '{wrong}': leave it out"):
        Run.resume(machine(), settings(run_url, objects=wrong), facts=FACTS)
    store = PostgresStore(replace(run_url, objects=right))
    hold = store.hold()
    store.open().close()
    hold.release()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("gs://bucket", r"no objects can be kept in gs: write s3://BUCKET/PREFIX or a folder"),
        ("s3://", "names no bucket"),
        ("objects", "write the whole path"),
    ],
)
def test_a_place_that_is_none_is_explained(written: str, said: str, run_url: RunUrl) -> None:
    with pytest.raises(SettingsError, match=said):
        StoreSettings(run_dir=run_url, objects=written)


def test_a_run_in_a_folder_keeps_its_bytes_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"is for a run in a database, and .*run is a folder: leave it out"):
        StoreSettings(run_dir=tmp_path / "run", objects=str(tmp_path))
    with pytest.raises(SettingsError, match="is for a run in a database: name one as run_dir"):
        StoreSettings(objects=str(tmp_path))


def test_a_bucket_that_is_not_there_is_named(bucket: str, run_url: RunUrl) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket/.* cannot be written: .*NoSuchBucket"):
        Run(machine(), settings(run_url, objects="s3://no-such-bucket"), facts=FACTS)
