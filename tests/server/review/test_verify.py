import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.postgres import Tamper
from tests.server.record.test_run import FACTS, advance, machine, settings
from tests.server.recorded_runs import record

from secureafl.errors import StoreError
from secureafl.server.record.address import Place, store_of
from secureafl.server.record.entries import Event
from secureafl.server.record.journal import Journal
from secureafl.server.record.run import Run
from secureafl.server.record.snapshots import Snapshots
from secureafl.server.review import verify as verifying
from secureafl.server.review.verify import accept_loss, sign, verify, verify_signed
from secureafl.types import Array


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    record(tmp_path / "run", 60).journal.close()
    return tmp_path / "run"


@pytest.fixture
def recorded(place: Place) -> Place:
    record(place, 60).journal.close()
    return place


def test_a_whole_run_is_counted(recorded: Place) -> None:
    found = verify(recorded)
    assert found.head is not None
    assert found.head.number == found.num_rows == 60 * 2 + found.num_snapshots
    assert found.num_updates == 60


def test_a_snapshot_that_a_live_server_removes_while_it_is_read_is_no_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(machine(), settings(place, snapshot_every=10), facts=FACTS)
    advance(run, 10)
    read = Snapshots.read

    def late(snapshots: Snapshots, version: int, sha256: str) -> Mapping[str, Array]:
        advance(run, 30)
        return read(snapshots, version, sha256)

    with monkeypatch.context() as patched:
        patched.setattr(Snapshots, "read", late)
        assert verify(place).num_snapshots == 0
    assert verify(place).num_snapshots == 2
    run.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE log SET reason = 'accepted' WHERE number = 7", "row 7 is damaged or was changed"),
        ("DELETE FROM log WHERE number = 9", "row 9 is missing"),
        ("DELETE FROM log WHERE number > 80", r"went back: rows 81 to 12\d are lost"),
        ("DELETE FROM log WHERE number < 5", "rows 1 to 4 are missing, and no row says why"),
        ("UPDATE facts SET value = '0.5' WHERE name = 'server_lr'", "row 1 is damaged or was changed"),
    ],
)
def test_what_was_changed_is_named(change: str, said: str, recorded: Place, tamper: Tamper) -> None:
    tamper(change)
    with pytest.raises(StoreError, match=said):
        verify(recorded)


def test_an_update_that_was_changed_is_named(recorded: Place, alter_update: Callable[[int], None]) -> None:
    alter_update(4)
    with pytest.raises(StoreError, match="the update in row 4 is damaged"):
        verify(recorded)


def test_a_log_of_other_rows_with_fitting_hashes_is_found_by_its_head(run_dir: Path, tmp_path: Path) -> None:
    record(tmp_path / "other", 59).journal.close()
    for name in ("run.db", "snapshots"):
        (tmp_path / "other" / name).rename(tmp_path / name)
    (run_dir / "run.db").write_bytes((tmp_path / "run.db").read_bytes())
    with pytest.raises(StoreError, match=r"went back|is not the one that was written"):
        verify(run_dir)


def test_a_damaged_or_missing_head_is_named(run_dir: Path) -> None:
    (run_dir / "head").write_bytes(b"\0" * 1024)
    with pytest.raises(StoreError, match="head is damaged"):
        verify(run_dir)
    (run_dir / "head").unlink()
    with pytest.raises(StoreError, match="head is missing"):
        verify(run_dir)


def test_half_a_head_is_enough(run_dir: Path) -> None:
    whole = (run_dir / "head").read_bytes()
    for half in (whole[:512] + b"\0" * 512, b"\0" * 512 + whole[512:]):
        (run_dir / "head").write_bytes(half)
        verify(run_dir)


def test_a_loss_can_be_accepted_and_is_on_record(recorded: Place, tamper: Tamper) -> None:
    tamper("DELETE FROM log WHERE number > 80")
    tamper("DELETE FROM updates WHERE number > 80")
    accept_loss(recorded)
    assert verify(recorded).num_rows == 81
    journal = store_of(recorded).read()
    [row] = journal.entries(Event.LOSS_ACCEPTED)
    journal.close()
    assert "the log ended with row 80" in row.reason


def test_rows_that_are_damaged_cannot_be_accepted(run_dir: Path) -> None:
    with sqlite3.connect(run_dir / "run.db") as vandal:
        vandal.execute("UPDATE log SET version = 3 WHERE number = 50")
    vandal.close()
    with pytest.raises(StoreError, match="row 50 is damaged or was changed"):
        accept_loss(run_dir)


def test_a_signed_head_proves_what_came_before_it(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.generate()
    signed = sign(run_dir, key)
    assert verify_signed(run_dir, signed, key.public_key()).number == verify(run_dir).num_rows
    with pytest.raises(StoreError, match="was not signed with this key, or was changed"):
        verify_signed(run_dir, signed, Ed25519PrivateKey.generate().public_key())
    said = json.loads(signed.read_text())
    signed.write_text(json.dumps({**said, "number": 3}))
    with pytest.raises(StoreError, match="was not signed with this key, or was changed"):
        verify_signed(run_dir, signed, key.public_key())


def test_who_rewrites_the_whole_log_cannot_rewrite_the_signed_head(run_dir: Path, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    deposited = sign(run_dir, key).rename(tmp_path / "deposited")
    record(tmp_path / "forged", 61, strength=-1.0).journal.close()
    verify(tmp_path / "forged")  # in itself it is whole
    with pytest.raises(StoreError, match="is not the one that was signed"):
        verify_signed(tmp_path / "forged", deposited, key.public_key())


def test_a_log_without_a_chain_is_not_signed(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "check", lambda journal: None)
    with pytest.raises(StoreError, match="has no chain: resume it once"):
        verifying.sign(run_dir, Ed25519PrivateKey.generate())
